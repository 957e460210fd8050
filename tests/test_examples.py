"""Every example runs and prints what it promises. Speedups are checked loosely: other programs may use the cores."""

import gc
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from lightning_perf.rules.thresholds import TINY_MAX_WITH_STACKS_S

EXAMPLES = Path(__file__).parent.parent / "examples"


def run_main(name, **constants):
    specification = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    vars(module).update(constants)
    gc.freeze()  # the tests' own objects, which would make collections slow
    try:
        return module.main()
    finally:
        gc.unfreeze()


def codes(session):
    return [finding.code for finding in session.findings]


def batch_s(session):
    return session.steady.span_s / session.steady.n_steps


def test_first_diagnosis_names_the_loader(capsys):
    session = run_main("01_first_diagnosis")

    # Which of the two comes first depends on whether other programs leave cores to workers.
    assert session.verdict.code in ("PD101", "PD106")
    shown = capsys.readouterr().out
    assert re.search(r"Verdict: .* of training time is spent waiting for data", shown)
    assert "DataLoader arguments to set: {'num_workers': " in shown


def test_plain_training_runs_without_lightning_perf(monkeypatch):
    monkeypatch.setattr("sys.argv", ["12_plain_training.py"])  # its main reads the command line
    trainer = run_main("12_plain_training")

    assert trainer.global_step == 192


@pytest.mark.clinic
def test_tutorial_of_the_measured_gain_works_word_by_word(tmp_path):
    page = (EXAMPLES.parent / "docs" / "tutorial" / "measured-gain.md").read_text(encoding="utf-8")
    commands = [block.strip() for block in re.findall(r"^```\n(.*?)^```", page, re.MULTILINE | re.DOTALL)]
    assert [command.split()[1] for command in commands] == ["run", "data", "run", "compare", "trial"]
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "PYTHONPATH": str(EXAMPLES.parent),
        "COLUMNS": "100",
    }
    shown = {}
    for command in (commands[0], commands[2], commands[3]):  # the other two have tests of their own, and take long
        words = [sys.executable, "-m", "lightning_perf", *command.split()[1:]]
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr
        shown[command] = done.stdout
    assert "PD101" in shown[commands[0]]
    comparison = shown[commands[3]]
    assert re.search(r"^time per step +\d", comparison, re.MULTILINE), comparison  # the verdict is the machine's
    assert re.search(r"num_workers +0 +2$", comparison, re.MULTILINE), comparison
    assert "settings.trainer.callbacks" not in comparison


def test_second_training_has_the_recommended_loader_arguments_and_both_speeds_are_printed(capsys):
    before, after = run_main("02_loader")
    assert "PD101" in codes(before)
    (loader,) = after.settings.loaders
    recommended = before.loader_args()
    assert {name: getattr(loader, name) for name in recommended} == recommended
    assert after.run.n_steps == before.run.n_steps
    assert f"A batch took {1e3 * batch_s(before):.1f} ms, now {1e3 * batch_s(after):.1f} ms" in capsys.readouterr().out


def test_lower_precision_is_advised_when_it_was_measured_faster(capsys):
    before, after = run_main("03_mixed_precision")

    assert before.settings.trainer.precision == "32-true"
    assert after.settings.trainer.precision == "bf16-mixed"
    assert before.trainer_flags("numerics").get("precision", "bf16-mixed") == "bf16-mixed"
    out = capsys.readouterr().out
    speedup = batch_s(before) / batch_s(after)
    assert f"speedup {speedup:.2f}x" in out
    advice = "Use bf16-mixed on this machine" if speedup >= 1.05 else "No speedup on this machine: keep float32"
    assert out.splitlines()[-1] == advice


def test_checkpointing_and_smaller_parts_make_room():
    whole, kept, part, session = run_main("04_checkpointing_and_accumulation")

    assert kept < whole / 2
    assert part == pytest.approx(whole / 4, rel=0.1)
    assert session.run.n_steps == 4 * session.run.n_optimizer_steps


def test_compiling_is_counted_apart_from_the_steps(monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))  # the default takes ten seconds
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/g++")
    before, after = run_main("05_compile")

    assert before.compiler is None
    assert after.compiler.n_compiles >= 1


@pytest.mark.clinic
def test_compiling_is_timed_apart_from_the_steps():
    before, after = run_main("05_compile")

    assert before.compiler is None
    if shutil.which("g++") or shutil.which("clang++"):
        assert after.compiler.n_compiles >= 1
        slowest_s = max(bucket.max_step_s for bucket in after.steady.timeline)
        assert slowest_s < after.compiler.compile_s  # no step that compiles is among them


@pytest.mark.clinic
def test_ladder_reaches_twice_the_speed():
    rungs = run_main("06_full_comparison")

    assert rungs[0][0] == "unchanged"
    assert re.match(r"PD\d+: ", rungs[1][0])
    assert len(rungs) >= 3
    assert rungs[0][1] / rungs[-1][1] >= 2


def test_command_line_adds_perf_doctor(capsys):
    session = run_main("07_lightning_cli")

    assert session.run.n_steps == 150
    assert "Verdict:" in capsys.readouterr().out


def test_slower_rank_is_named(forkserver, tmp_path):
    done = forkserver.run(EXAMPLES / "08_two_ranks.py", n_ranks=2, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^Verdict: PD", done.stdout, re.MULTILINE), done.stdout  # that of rank 0 alone, once


def test_notebook_shows_the_session(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells = json.loads((EXAMPLES / "09_notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    names = {"__name__": "notebook"}
    for source in code[:-2]:
        exec(compile(source, "notebook", "exec"), names)
    session, verdict = (eval(source, names) for source in code[-2:])

    assert "PD504" in session._repr_html_()
    assert "Reporter" in verdict


def test_other_namespace_has_its_own_perf_doctor():
    pytest.importorskip("pytorch_lightning")
    session = run_main("10_plain_pytorch_lightning")

    assert "PD503" in codes(session)
    assert session.trainer_flags()["detect_anomaly"] is False


def test_trace_is_read_without_lightning():
    trace = run_main("11_trace_from_anywhere")

    assert len(trace.steps) == 4
    # On a machine that holds each operator up for longer, the loop is not what costs.
    assert trace.verdict.code == "PD304" or trace.operator_mean_s > TINY_MAX_WITH_STACKS_S


EVERY = sorted([*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.ipynb")])


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.stem)
def test_example_is_run_by_a_test(path):
    text = Path(__file__).read_text()
    assert f'"{path.stem}"' in text or f'"{path.name}"' in text


def test_tutorial_of_the_whole_way_names_every_example():
    page = (EXAMPLES.parent / "docs" / "tutorial" / "the-whole-way.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\d\d_\w+\.(?:py|ipynb)", page))
    assert named == {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")}
