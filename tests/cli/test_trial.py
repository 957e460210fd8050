"""``lightning-perf trial``: one real trial of treatments with planted outcomes, and what is refused."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from reports.trials import climbed

from lightning_perf import load
from lightning_perf.cli.trial import TENSORBOARD_FOLDER, _checked_bytes, _write_hparams
from lightning_perf.errors import ConfigError
from tests.fuzzing import thinned
from tests.trials import scripts
from tests.trials.test_process_supervisor import is_alive, wait_for


def trial(work: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lightning_perf", "trial", *arguments]
    return subprocess.run(
        command, cwd=work, env=scripts.environment(), capture_output=True, text=True, timeout=280, check=False
    )


FAILURES = {
    "log-every-n=103": "RuntimeError: a kernel went missing",
    "log-every-n=104": "time limit of 25 s",
    "log-every-n=105": "its limit is 2.00 GiB",
    "log-every-n=106": "the loss became nan at batch 6",
}
"""Planted treatments and why their runs fail."""

# The process supervisor applies time and memory limits; test_process_supervisor.py tests them.
TRIED = thinned(["log-every-n=103", "log-every-n=106"], ["log-every-n=104", "log-every-n=105"])


def test_failures_are_reported_and_files_of_the_user_do_not_change(tmp_path: Path) -> None:
    work, out = tmp_path / "work", tmp_path / "out"
    work.mkdir()
    scripts.put(work, train=scripts.PLANTED)
    before = scripts.tree(work)
    time_limit_s = 25 if "log-every-n=104" in TRIED else 240  # one that hangs is ended
    limits = ["--steps", "300", "--repeats", "1", "--time-limit", str(time_limit_s), "--memory-limit", "2G"]
    done = trial(work, "--out", str(out), "--try", ",".join(TRIED), *limits, "--json", "--", sys.executable, "train.py")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    runs = {run["arm"]: run for run in record["runs"]}
    assert runs["baseline"]["n_steps"] == runs["baseline-again"]["n_steps"] == 300
    for arm in TRIED:
        assert runs[arm]["status"] == "failed"
        assert FAILURES[arm] in runs[arm]["reason"]
        assert "trained to the end" not in (out / runs[arm]["log"]).read_text()
    assert record["best"] == "baseline"
    assert load(out).trials[0].id == record["id"]
    assert load(out).findings
    assert scripts.tree(work) == before


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--", sys.executable, "-c", "print('one'); raise SystemExit(4)"], "it exited with 4: one"),
        (["--try", "no-such", "--", "true"], "is not a treatment"),
        (["--memory-limit", "lots", "--", "true"], "expected a size such as 8G"),
        (["--time-limit", "inf", "--", "true"], "inf: expected seconds, at least 1"),
        (["--", "python", "-E", "train.py"], "ignore PYTHONPATH"),
        (["--out", "/proc/none/trial", "--", "true"], "cannot write to /proc/none/trial: "),
    ],
)
def test_bad_input_is_one_clear_error(tmp_path: Path, arguments: list[str], expected: str) -> None:
    done = trial(tmp_path, "--out", "out", *arguments)
    assert done.returncode == 2
    assert expected in done.stderr.splitlines()[-1]


def test_too_short_a_training_is_one_clear_error(tmp_path: Path) -> None:
    scripts.put(tmp_path, train=scripts.PLANTED.replace("max_epochs=3", "max_epochs=1, limit_train_batches=12"))
    done = trial(tmp_path, "--out", "out", "--", sys.executable, "train.py")
    assert done.returncode == 2
    assert "after 12 optimizer steps" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(("text", "size"), [("8G", 8 * 2**30), ("512m", 2**29), ("1.5 GiB", 3 * 2**29), ("64M", 2**26)])
def test_size_is_read(text: str, size: int) -> None:
    assert _checked_bytes(text) == size


@pytest.mark.parametrize("text", ["", "0", "8", "63M", "-1G", "8 gigs"])
def test_size_is_refused_when_it_is_none(text: str) -> None:
    with pytest.raises(ConfigError, match="8G"):
        _checked_bytes(text)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupt_during_the_diagnosis_ends_the_training_and_is_reported(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(600)")
    command = [sys.executable, "-m", "lightning_perf", "trial", "--out", "out", "--", sys.executable, "train.py"]
    going = subprocess.Popen(command, cwd=tmp_path, env=scripts.environment(), stderr=subprocess.PIPE, text=True)
    assert wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    pid = int((tmp_path / "pid").read_text())
    going.send_signal(number)
    _, errors = going.communicate(timeout=60)
    assert going.returncode == code
    assert "nothing to report" in errors
    assert not is_alive(pid)


def test_arms_become_rows_for_tensorboard_and_replace_those_of_an_interrupted_trial(tmp_path: Path) -> None:
    _write_hparams(tmp_path, climbed())
    _write_hparams(tmp_path, climbed())
    n_measured = sum(arm.step_s is not None for arm in climbed().arms)
    assert len([path for path in (tmp_path / TENSORBOARD_FOLDER).iterdir() if path.is_dir()]) == n_measured
    _write_hparams(tmp_path, msgspec.structs.replace(climbed(), arms=()))
    assert not (tmp_path / TENSORBOARD_FOLDER).exists()


def test_error_is_reported_when_rows_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    _write_hparams(tmp_path / "file", climbed())
    assert "nothing was written for TensorBoard" in capsys.readouterr().err
