# Two commands matter: `make demo` and `make test`. Each makes .venv and installs what it needs, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test check fast lint typecheck imports pytest docs docs-rules gpu-check torture test-oldest wheel-check bench clinic mutants clean

demo: $(STAMP)
	$(BIN)/lightning-perf demo

test: lint typecheck imports pytest

# For the inner loop, under a minute: what reads the code, and quick tests that train nothing.
check: $(STAMP)
	$(MAKE) --jobs 2 lint typecheck imports fast

fast: $(STAMP)
	$(PYTEST) tests/stats tests/records tests/rules tests/reports -k 'not hostile and not simulated'

# Reinstalls only when what is declared has changed.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,docs]'
	touch $(STAMP)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

typecheck: $(STAMP)
	$(BIN)/mypy

imports: $(STAMP)
	$(BIN)/lint-imports

# One torch thread per worker: two workers on two cores must not compete for them.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q --durations=12

pytest: $(STAMP)
	$(PYTEST) -n 2 --dist worksteal

# The site, into build/site, which opens from disk. `make test` builds it too.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

docs-rules: $(STAMP)
	$(BIN)/python docs/generate_rules.py
	$(BIN)/python docs/generate_thresholds.py
	$(BIN)/python docs/generate_treatments.py
	$(BIN)/python docs/generate_cli.py

# For a machine with an accelerator; elsewhere everything is skipped.
gpu-check: $(STAMP)
	$(BIN)/python -m pytest -m gpu tests/gpu -q

# Probes and reports that raise, interrupts and kills at any moment, hostile files, processes left behind: with another
# process on a core, and ten times as many random files as `make test` tries.
TORTURE := tests/trainer/test_faults.py tests/trainer/test_endings.py tests/trainer/test_interrupts.py \
  tests/trainer/test_ranks.py tests/trainer/test_rank_causes.py tests/trainer/test_company.py \
  tests/trainer/test_probe_data.py tests/trainer/test_apply.py tests/trainer/test_unchanged.py \
  tests/trials/test_process_supervisor.py tests/trials/test_foreground.py tests/trials/test_trial_mode.py \
  tests/trials/test_trial.py tests/trials/test_outputs.py tests/probes/loader tests/probes/test_oom.py \
  tests/probes/ranks tests/traces/test_fuzz.py tests/traces/test_hostile_traces.py tests/traces/test_read.py \
  tests/rules/test_any_session.py tests/rules/test_any_trace.py tests/records tests/reports/test_hostile_sessions.py \
  tests/reports/test_html.py tests/reports/test_console.py tests/reports/test_figures.py tests/tensorboard_plugin \
  tests/treatments/test_compile.py tests/treatments/test_interrupts.py tests/cli/test_trial.py tests/cli/test_report.py \
  tests/cli/test_analyze.py
torture: $(STAMP)
	FUZZ=10 OMP_NUM_THREADS=1 $(BIN)/python tests/beside_load.py $(BIN)/python -m pytest $(TORTURE) -q -n 2 --dist worksteal

# The oldest Lightning that is supported, in an environment of its own: what touches the Trainer. Its RichProgressBar
# fails with a rich from 14.1 on, by itself too.
OLDEST := .venv-oldest
test-oldest:
	test -x $(OLDEST)/bin/pip || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]' \
	  'lightning==2.4.0' 'pytorch-lightning==2.4.0' 'rich<14.1'
	OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest -n 2 --dist worksteal -q \
	  tests/trainer tests/treatments tests/trials tests/probes/test_loop.py tests/probes/test_settings.py

# The wheel: what is in it, and whether it runs where nothing else of this is.
wheel-check: $(STAMP)
	$(BIN)/python tests/check_wheel.py

# Most of what the docs' figures are from, measured again: eighty minutes, on a machine that does nothing else. Each writes
# its page, and one that misses what it promises is told at the end. TraceML is installed from PyPI into an environment of
# its own. By themselves run the clinic, benchmarks/loader/causes.py (half an hour) and what reads a folder of traces,
# benchmarks/trace_reading/run.py.
BENCHMARKS := "overhead/run.py --within --starts 8 --write" "overhead/run.py --starts 3 --rounds 12 --write" \
  "windows/run.py --write" "sampled_steps/run.py --write" telemetry/run.py "loader/run.py --write" \
  "loader/run.py --threads 2 --write" "precision/run.py --threads 1 --write" \
  "ranks/run.py --write" "tab/run.py --write" "statistics/run.py --write" "comparison/run.py --write" \
  "trial/run.py --write"
bench: export PYTHONPATH := $(CURDIR)
bench: $(STAMP)
	@failed=; for each in $(BENCHMARKS); do \
	  echo "== $$each"; $(BIN)/python benchmarks/$$each || failed="$$failed, $$each"; done; \
	test -z "$$failed" || { echo "missed or failed: $${failed#, }"; exit 1; }

# Trainings with known faults and healthy ones: how often the diagnosis is right, and which promises are kept. On a
# machine that does nothing else. Speedups are measured on the half "score", twice: once, a machine that drifts put every
# fifth of them outside of what was predicted. The same with abilities of the CPU switched off, each as a first run:
# make clinic CAPS=none,avx2,avx512_core,one-thread. Each cap has a section of its own on the page.
CAPS ?= none
clinic: $(STAMP)
	$(PYTEST) -m clinic
	$(BIN)/python benchmarks/clinic/run.py --caps $(CAPS) --healthy-rounds 3 --rounds 2 --write

# Small faults put into the arithmetic and the rules: do the tests notice? Ten to thirty minutes.
mutants: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt 'cosmic-ray>=8.3'
	$(BIN)/python benchmarks/mutation/run.py --write

clean:
	rm -rf $(VENV) $(OLDEST) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
