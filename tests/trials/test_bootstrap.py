"""Injection into a Python process, with a fake Lightning that imports fast."""

from __future__ import annotations

import subprocess
import sys
from ast import literal_eval
from pathlib import Path
from typing import Any

import pytest

from lightning_perf.trials.job import JOB_VARIABLE, Job, environment_for, read_events, read_result

from . import scripts

# The real module name and class shape are all that the injection needs.
STAND_IN = """
class Trainer:
    def __init__(self, *, max_epochs=None, precision=None, callbacks=None):
        if precision == "bf16-mixed":
            raise ValueError("no such precision")
        self.callbacks, self.precision = callbacks or [], precision

    def fit(self, model):
        print("fits", model)

    test = predict = validate = fit
"""
TRAINS = """
import inspect, sys
from lightning.pytorch.trainer.trainer import Trainer
class Own(Trainer):
    def __init__(self, **arguments):
        super().__init__(**arguments)
print(inspect.signature(Trainer.__init__), inspect.signature(Trainer.fit))
print(type(sys.modules[Trainer.__module__].__loader__).__name__)
Own(max_epochs=3).fit("model")
print("the rest of the script")
"""


def put_stand_in(folder: Path) -> None:
    """Write a fake Lightning package that imports fast."""
    package = folder / "lightning" / "pytorch" / "trainer"
    package.mkdir(parents=True)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").write_text("")
    (package / "trainer.py").write_text(STAND_IN)
    (package.parent / "__init__.py").write_text("class Callback: ...")
    (package.parent / "loggers").mkdir()
    (package.parent / "loggers" / "__init__.py").touch()
    (package.parent / "loggers" / "logger.py").write_text("class Logger: ...")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    put_stand_in(tmp_path / "work")
    (tmp_path / "work" / "train.py").write_text(TRAINS)
    return tmp_path / "work"


def run(work: Path, environment: dict[str, str], script: str = "train.py") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, script]
    return subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, timeout=60, check=False)


def job_in(tmp_path: Path, **arguments: Any) -> tuple[Job, dict[str, str]]:
    job = Job(**{"mode": "run", "folder": str(tmp_path / "job"), "with_doctor": False, **arguments})
    return job, environment_for(job, job.write(), scripts.environment())


def test_script_runs_unchanged_and_its_stages_are_recorded(work: Path, tmp_path: Path) -> None:
    job, environment = job_in(tmp_path)
    plain, ours = run(work, scripts.environment()), run(work, environment)
    assert plain.returncode == 0, plain.stderr
    assert (ours.returncode, ours.stdout, ours.stderr) == (0, plain.stdout, plain.stderr)
    assert read_events(job.folder) == {"python", "lightning", "trainer", "fit"}


@pytest.mark.parametrize("shadowed", [None, "import sys; sys.is_customized = True", "raise ValueError('broken')"])
def test_process_loads_only_the_bootstrap_when_it_never_imports_lightning(
    work: Path, tmp_path: Path, shadowed: str | None
) -> None:
    (work / "show.py").write_text("import sys\nprint(sorted(sys.modules))\nprint(sys.path)")
    (work / "own").mkdir()
    if shadowed is not None:
        (work / "own" / "sitecustomize.py").write_text(shadowed)
    without = {**scripts.environment(), "PYTHONPATH": str(work / "own")}
    job = Job(mode="run", folder=str(tmp_path / "job"), with_doctor=False)
    plain, ours = (run(work, each, "show.py") for each in (without, environment_for(job, job.write(), without)))
    assert ("ValueError: broken" in ours.stderr) is ("ValueError: broken" in plain.stderr)
    plain_modules, plain_path = plain.stdout.splitlines()
    modules, path = ours.stdout.splitlines()
    assert set(literal_eval(modules)) - set(literal_eval(plain_modules)) <= {"sitecustomize"}
    assert path == plain_path


def test_own_sitecustomize_still_runs(work: Path, tmp_path: Path) -> None:
    (work / "own").mkdir()
    (work / "own" / "sitecustomize.py").write_text("import sys\nsys.is_customized = True\n")
    (work / "show.py").write_text("import sys, sitecustomize\nprint(sys.path, sys.is_customized, sitecustomize)")
    job = Job(mode="run", folder=str(tmp_path / "job"))
    plain = {**scripts.environment(), "PYTHONPATH": str(work / "own")}
    ours = environment_for(job, job.write(), plain)
    assert run(work, plain, "show.py").stdout == run(work, ours, "show.py").stdout != ""


def test_run_continues_without_lightning_perf_when_its_code_raises(work: Path, tmp_path: Path) -> None:
    plain = run(work, scripts.environment())
    _, environment = job_in(tmp_path)
    Path(environment[JOB_VARIABLE]).write_text("not a job")
    broken = run(work, environment)
    assert (broken.returncode, broken.stdout) == (0, plain.stdout)
    assert broken.stderr.startswith("lightning-perf: not added to this process: TrialError: cannot read the job")
    assert broken.stderr.count("\n") == 1


def test_run_continues_unchanged_when_trainer_rejects_a_treatment(work: Path, tmp_path: Path) -> None:
    _, environment = job_in(tmp_path, specs=("precision-bf16",))
    refused = run(work, environment)
    assert refused.returncode == 0
    assert "the rest of the script" in refused.stdout
    assert (
        "Trainer rejects the treatments' arguments, so none is applied: ValueError: no such precision" in refused.stderr
    )


def test_run_continues_after_one_line_when_its_mode_raises(work: Path, tmp_path: Path) -> None:
    _, environment = job_in(tmp_path, specs=("no-such-treatment",))
    refused = run(work, environment)
    assert refused.returncode == 0
    assert "the rest of the script" in refused.stdout
    assert refused.stderr.startswith("lightning-perf: not added to this Trainer: ConfigError: 'no-such-treatment'")
    assert refused.stderr.count("\n") == 1


def test_measured_run_ends_at_once_when_code_of_lightning_perf_raises(work: Path, tmp_path: Path) -> None:
    job, environment = job_in(tmp_path, mode="trial")
    Path(environment[JOB_VARIABLE]).write_text("not a job")
    broken = run(work, environment)
    assert broken.returncode == 70
    assert broken.stdout == ""
    assert "refused" in read_events(job.folder)


def test_measured_run_ends_with_the_reason_when_a_mode_raises(work: Path, tmp_path: Path) -> None:
    job, environment = job_in(tmp_path, mode="trial", specs=("no-such-treatment",))
    ended = run(work, environment)
    assert ended.returncode == 70
    assert "the rest" not in ended.stdout
    result = read_result(job.folder)
    assert result is not None
    assert result.status == "failed"
    assert "is not a treatment" in result.reason
