"""Checks of a command before it runs."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from lightning_perf.errors import TrialError
from lightning_perf.trials.job import Job
from lightning_perf.trials.reach import ignores_environment
from lightning_perf.trials.runner import check_command, describe_code, last_line, run_supervised


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        ("python train.py -I", None),
        ("python -I train.py", "-I"),
        ("/usr/bin/python3.11 -uE -m train", "-uE"),
        ("python -Werror train.py", None),
        ("python -X importtime train.py", None),
        ("python -X importtime -S train.py", "-S"),
        ("python -m train -E", None),
        ("python -mIES", None),
        ("python -Bc import_IES", None),
        ("python -uW error -E train.py", "-E"),
        ("python --check-hash-based-pycs always train.py", None),
        ("python - -E", None),
        ("torchrun -I train.py", None),
    ],
)
def test_flag_is_found_when_python_ignores_its_environment(command: str, flag: str | None) -> None:
    assert ignores_environment(command.split()) == flag


def test_command_is_refused_when_it_is_empty_or_ignores_its_environment() -> None:
    with pytest.raises(TrialError, match="write it after --"):
        check_command([])
    with pytest.raises(TrialError, match="flag -E"):
        check_command(["python", "-E", "train.py"])
    check_command(["python", "train.py"])


def test_last_line_is_the_error_when_a_log_ends_with_blank_lines() -> None:
    assert last_line("Traceback\nValueError: no\n\n  \n") == "ValueError: no"
    assert last_line("") == "it printed nothing"


@pytest.mark.parametrize(("given", "seen"), [("disabled", "disabled"), ("online", "offline"), (None, "offline")])
def test_services_are_off_line_and_stay_off_where_they_were_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None, seen: str
) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    if given is not None:
        monkeypatch.setenv("WANDB_MODE", given)
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    ended = run_supervised([sys.executable, "-c", code], Job(mode="trial", folder=str(tmp_path)), time_limit_s=60)
    told = json.loads(ended.log)
    assert told["WANDB_MODE"] == seen
    assert told["WANDB_DIR"] == str(tmp_path)


def test_exit_code_shows_what_ended_a_command() -> None:
    assert describe_code(3) == "it exited with 3"
    assert describe_code(-15) == "it was killed by signal 15"
    assert "memory runs out" in describe_code(-9)


def test_command_is_not_run_when_the_disk_is_nearly_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=2**40, used=2**40, free=0))
    with pytest.raises(TrialError, match=r"cannot run the command: .*would stay free on the disk"):
        run_supervised([sys.executable, "-c", "pass"], Job(mode="trial", folder=str(tmp_path / "job")))
    assert list(tmp_path.iterdir()) == []
