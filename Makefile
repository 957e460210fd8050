# The main commands are `make demo` and `make test`. Each creates .venv and installs dependencies once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test static check fast lint typecheck imports pytest docs docs-rules gpu-check torture test-oldest test-newest wheel-check bench clinic mutants clean

demo: $(STAMP)
	$(BIN)/lightning-perf demo

# Static checks run beside the tests, which often wait.
test: $(STAMP)
	$(MAKE) --jobs 2 static pytest

static: lint typecheck imports

# For the inner loop, under a minute: static checks, and fast tests without training.
check: $(STAMP)
	$(MAKE) --jobs 2 lint typecheck imports fast

fast: $(STAMP)
	$(PYTEST) tests/stats tests/records tests/rules tests/reports -k 'not hostile and not simulated'

# Reinstalls only after changes to pyproject.toml or constraints.txt.
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

# One torch thread per pytest worker, and three workers for two cores, since many tests wait for processes or clocks.
# Without bytecode files, every process that the tests start would compile the package again.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q --durations=12

pytest: $(STAMP)
	$(PYTEST) -n 3 --dist worksteal

# Build the site into build/site; it can be opened from disk. `make test` builds it too.
# Without --quiet, which would hide the warnings from --strict.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-rules: $(STAMP)
	$(BIN)/python docs/generate_rules.py

# For machines with an accelerator; on others, all of it is skipped.
gpu-check: $(STAMP)
	$(BIN)/python -m pytest -m gpu tests/gpu -q

# Failing probes and reports, interrupts and kills at any time, malformed files, leftover processes: next to another
# busy process, and with ten times as many random files as `make test`.
TORTURE := tests/trainer/test_faults.py tests/trainer/test_endings.py tests/trainer/test_interrupts.py \
  tests/trainer/test_ranks.py tests/trainer/test_rank_causes.py tests/trainer/test_company.py \
  tests/trainer/test_probe_data.py tests/trainer/test_apply.py tests/trainer/test_unchanged.py \
  tests/trials/test_process_supervisor.py tests/trials/test_foreground.py tests/trials/test_trial_mode.py \
  tests/trials/test_trial.py tests/trials/test_outputs.py tests/probes/loader tests/probes/memory/test_oom.py \
  tests/probes/ranks tests/traces/test_fuzz.py tests/traces/test_hostile_traces.py tests/traces/test_read.py \
  tests/rules/test_any_session.py tests/rules/test_any_trace.py tests/records tests/reports/test_hostile_sessions.py \
  tests/reports/test_html.py tests/reports/test_console.py tests/reports/test_figures.py tests/tensorboard_plugin \
  tests/treatments/test_compile.py tests/treatments/test_interrupts.py tests/cli/test_trial.py tests/cli/test_report.py \
  tests/cli/test_analyze.py
# Ten times the cases, beside load, take longer than the time limit of a test in `make test`.
torture: $(STAMP)
	FUZZ=10 OMP_NUM_THREADS=1 $(BIN)/python tests/beside_load.py $(BIN)/python -m pytest $(TORTURE) -q -n 2 \
	  --dist worksteal --timeout=1200

# The tests that depend on torch and Lightning, with the oldest supported versions (on Python 3.10 to 3.12) and with the
# newest ones, each in an environment of its own. The RichProgressBar of Lightning 2.4 does not work with rich >= 14.1.
VERSIONS := tests/trainer tests/treatments tests/trials tests/probes tests/traces tests/tensorboard_plugin
OLDEST := .venv-oldest
test-oldest:
	test -x $(OLDEST)/bin/pip || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --editable '.[dev]' \
	  'torch==2.4.0' 'numpy<2.3' 'lightning==2.4.0' 'pytorch-lightning==2.4.0' 'rich<14.1'
	OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest -n 2 --dist worksteal -q $(VERSIONS)

NEWEST := .venv-newest
test-newest:
	test -x $(NEWEST)/bin/pip || $(PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/python -m pip install --quiet --upgrade --upgrade-strategy eager --editable '.[dev]'
	OMP_NUM_THREADS=1 $(NEWEST)/bin/python -m pytest -n 2 --dist worksteal -q $(VERSIONS)

# Build the sdist and the wheel, check their contents, and run the wheel in an empty environment.
wheel-check: $(STAMP)
	$(BIN)/python tests/check_wheel.py

# Repeat most measurements in the docs: eighty minutes on an otherwise idle machine. Each script writes its page; those
# that miss a target are listed at the end. TraceML is installed from PyPI into an environment of its own. Not included:
# the clinic, benchmarks/loader/causes.py (half an hour), and benchmarks/trace_reading/run.py, which needs a folder of
# traces.
BENCHMARKS := "overhead/run.py --within --starts 8 --write" "overhead/run.py --starts 3 --rounds 12 --write" \
  "windows/run.py --write" "sampled_steps/run.py --write" telemetry/run.py "loader/run.py --write" \
  "loader/run.py --threads 2 --write" "precision/run.py --threads 1 --write" \
  "ranks/run.py --write" "tab/run.py --write" "statistics/run.py --write" "comparison/run.py --write" \
  "history/run.py --write" "trial/run.py --write" "endings/run.py --write"
bench: export PYTHONPATH := $(CURDIR)
bench: $(STAMP)
	@failed=; for each in $(BENCHMARKS); do \
	  echo "== $$each"; $(BIN)/python benchmarks/$$each || failed="$$failed, $$each"; done; \
	test -z "$$failed" || { echo "missed or failed: $${failed#, }"; exit 1; }

# Trainings with known faults and healthy ones: how often the diagnosis is right and how many speedups are as predicted,
# on an otherwise idle machine. Speedups of the half "score" are measured twice, because on a drifting machine one
# measurement put every fifth outside the prediction. With CPU features disabled, each from a cold start:
# make clinic CAPS=none,avx2,avx512_core,one-thread. The page has a section per cap.
CAPS ?= none
clinic: $(STAMP)
	$(PYTEST) -m clinic
	$(BIN)/python benchmarks/clinic/run.py --caps $(CAPS) --healthy-rounds 3 --rounds 2 --write

# Mutation tests of statistics, rules and records: ten to thirty minutes.
mutants: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt 'cosmic-ray>=8.3'
	$(BIN)/python benchmarks/mutation/run.py --write

clean:
	rm -rf $(VENV) $(OLDEST) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
