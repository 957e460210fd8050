"""What can be said of a command before it runs."""

from __future__ import annotations

import pytest

from lightning_perf.errors import TrialError
from lightning_perf.trials.runner import check_command, ignores_environment, last_line


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
