"""Commands that train without lightning-perf are noticed while they run; those that may still import it continue."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lightning_perf.errors import TrialError
from lightning_perf.trials import data, reach
from lightning_perf.trials.foreground import run_in_foreground
from lightning_perf.trials.job import Job, environment_for, note, warn
from lightning_perf.trials.reach import Notice, has_next_python, notice_about, watch_reach
from lightning_perf.trials.runner import explain, run_supervised
from lightning_perf.trials.trial import Options, run_trial

from .test_process_supervisor import is_alive, wait_for
from .test_trial import Silent

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows what another process has loaded")

# Maps a file as importing torch does, then runs until the test ends it.
TRAINS = """
import mmap, os, sys, time
open("libtorch_cpu.so", "wb").write(bytes(4096))
loaded = mmap.mmap(os.open("libtorch_cpu.so", os.O_RDONLY), 0, prot=mmap.PROT_READ)
if "--fork" in sys.argv:
    os.fork()
open("pid", "a").write(f"{os.getpid()}\\n")
time.sleep(600)
"""
PREPARES = "import time; open('pid', 'w').write('0'); time.sleep(600)"
WAIT = "while not __import__('os').path.exists('notices'): time.sleep(0.01)\ntime.sleep(1)"
PYTHON = sys.executable


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAINS)
    (tmp_path / "prepare.py").write_text(PREPARES)
    monkeypatch.setattr(reach, "AFTER_S", 0.2)
    monkeypatch.setattr(reach, "EVERY_S", 0.2)
    return tmp_path


@pytest.fixture
def notice_of(work: Path) -> Iterator[Callable[..., Notice]]:
    """Start a command with a job, and inspect it once it runs."""
    started: list[subprocess.Popen[bytes]] = []

    def inspect(*command: str) -> Notice:
        job = Job(mode="trial", folder=str(work / "job"))
        environment = environment_for(job, job.write())
        started.append(subprocess.Popen(command, env=environment, start_new_session=True))
        assert wait_for(lambda: (work / "pid").exists() and (work / "pid").read_text())
        time.sleep(reach.AFTER_S)
        return notice_about(started[-1].pid, job.folder)

    yield inspect
    for one in started:
        os.killpg(one.pid, signal.SIGKILL)
        one.wait()


@pytest.mark.parametrize(
    ("shell", "why"),
    [
        (f"{PYTHON} -E train.py; true", "-E makes Python ignore PYTHONPATH or site"),
        (f"{PYTHON} -u -I train.py; true", "-I makes Python ignore PYTHONPATH or site"),
        (f"env -i {PYTHON} train.py; true", "pass on PYTHONPATH and LIGHTNING_PERF_JOB"),
        (f"PYTHONPATH=src {PYTHON} train.py; true", "the command replaces PYTHONPATH"),
        (f"exec env -u PYTHONPATH {PYTHON} train.py", "the command replaces PYTHONPATH"),
    ],
)
def test_notice_is_final_with_a_reason_when_a_training_runs_without_lightning_perf(
    notice_of: Callable[..., Notice], shell: str, why: str
) -> None:
    notice = notice_of("sh", "-c", shell)
    assert notice.is_final
    assert "has loaded torch without lightning-perf" in notice.text
    assert why in notice.text
    assert "train.py" in notice.text


def test_notice_is_final_when_the_program_is_frozen(notice_of: Callable[..., Notice], work: Path) -> None:
    frozen = work / "train-frozen"
    frozen.symlink_to(PYTHON)
    notice = notice_of(str(frozen), "-E", "train.py")  # a frozen program ignores PYTHONPATH too
    assert notice.is_final
    assert "it is not a Python interpreter that reads PYTHONPATH" in notice.text


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ((PYTHON, "prepare.py"), "not imported Lightning's Trainer"),
        ((PYTHON, "train.py"), "not imported Lightning's Trainer"),  # it may import Lightning later than torch
        ((PYTHON, "train.py", "--fork"), "not imported Lightning's Trainer"),
        (("sh", "-c", "echo 0 > pid; sleep 600"), "has not started a Python that lightning-perf reaches"),
        (("sh", "-c", f"{PYTHON} -I prepare.py; true"), "-I makes Python ignore"),  # the next command may train
    ],
)
def test_notice_is_not_final_when_the_training_may_yet_begin(
    notice_of: Callable[..., Notice], command: tuple[str, ...], says: str
) -> None:
    notice = notice_of(*command)
    assert not notice.is_final
    assert says in notice.text


def test_notice_is_not_final_when_a_python_that_was_reached_is_alive_too(notice_of: Callable[..., Notice]) -> None:
    tokenizes = f"import subprocess; subprocess.run([{PYTHON!r}, '-I', 'train.py'])"
    notice = notice_of(PYTHON, "-c", tokenizes)
    assert not notice.is_final
    assert "-I makes Python ignore" in notice.text


@pytest.mark.parametrize("isolated", ["train.py", "prepare.py"])
@pytest.mark.parametrize("is_file", [False, True])
def test_notice_is_not_final_when_the_shell_starts_another_python_next(
    notice_of: Callable[..., Notice], work: Path, isolated: str, is_file: bool
) -> None:
    script = f"{PYTHON} -I {isolated} && {PYTHON} other.py"
    (work / "run.sh").write_text(script)
    notice = notice_of("sh", "run.sh") if is_file else notice_of("bash", "-eo", "pipefail", "-c", script)
    assert not notice.is_final
    assert "remove the flag if this is the training" in notice.text


@pytest.mark.parametrize(
    ("script", "is_next"),
    [
        ("python -I prepare.py && python train.py", True),
        ("python -I prepare.py > log; python -E train.py; python train.py", True),
        ("cd work\npython -I prepare.py\nexec torchrun train.py", True),
        ("env X=1 python -I prepare.py; bash train.sh", True),
        ("python -I prepare.py && python -E train.py", False),
        ("python early.py; python -I prepare.py; echo done", False),
        ("python -I prepare.py | tee log", False),
    ],
)
def test_next_python_is_found_when_a_shell_script_starts_one(script: str, is_next: bool) -> None:
    assert has_next_python(script, ["python", "-I", "prepare.py"]) == is_next


def test_command_goes_on_when_only_its_first_program_is_isolated(work: Path) -> None:
    notices: list[str] = []
    (work / "train.py").write_text(TRAINS.replace("time.sleep(600)", WAIT))

    def keep(text: str) -> None:
        notices.append(text)
        Path("notices").touch()

    command = ["sh", "-c", f"{PYTHON} -I train.py && {PYTHON} -c 'print(\"trained\")'"]
    ended = run_supervised(command, Job(mode="trial", folder="job"), time_limit_s=60, warn=keep)
    assert (ended.code, ended.log, ended.reason) == (0, "trained", "")
    assert len(notices) == 1


def test_command_is_ended_with_the_reason_when_its_training_cannot_be_reached(work: Path) -> None:
    command = ["sh", "-c", f"{PYTHON} -E train.py; true"]
    ended = run_supervised(command, Job(mode="trial", folder="job"), time_limit_s=60)
    assert "it was ended after" in ended.failure
    assert "remove the flag" in explain(command, ended)
    assert wait_for(lambda: not is_alive(int((work / "pid").read_text())))


def test_trial_and_data_are_one_error_when_the_training_cannot_be_reached(work: Path) -> None:
    command = ("sh", "-c", f"{PYTHON} -E train.py; true")
    with pytest.raises(TrialError, match=r"could not be measured .* remove the flag"):
        run_trial(Options(command=command), work / "out", Silent())
    with pytest.raises(TrialError, match=r"could not be measured .* remove the flag"):
        data.probe_command(command, work / "data", 5.0)


def test_command_that_prepares_data_is_reported_once_and_continues(work: Path) -> None:
    notices: list[str] = []
    code = f"import time\n{WAIT}"
    job = Job(mode="trial", folder="job")

    def keep(text: str) -> None:
        notices.append(text)
        Path("notices").touch()

    ended = run_supervised([PYTHON, "-c", code], job, time_limit_s=60, warn=keep)
    assert ended.code == 0
    assert len(notices) == 1
    assert "still waiting" in notices[0]


def test_no_notice_is_shown_when_lightning_was_imported(work: Path) -> None:
    notices: list[Notice] = []
    job = Job(mode="trial", folder=str(work / "job"))
    job.write()
    note(job, "lightning")
    with watch_reach(os.getpid(), job.folder, notices.append):
        assert wait_for(lambda: all(thread.name != "lightning-perf-reach" for thread in threading.enumerate()))
    assert notices == []


def test_real_run_continues_with_a_reason_when_its_training_cannot_be_reached(
    work: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def warn_and_end(text: str) -> None:
        warn(text)
        process = re.match(r"process (\d+) .* has loaded torch", text)
        if process is not None:  # otherwise it is still starting, as the line reports
            os.kill(int(process[1]), signal.SIGTERM)  # only now: the command went on until here

    monkeypatch.setattr("lightning_perf.trials.foreground.warn", warn_and_end)
    code, events = run_in_foreground(["env", "-i", PYTHON, "train.py"], Job(mode="run", folder="job"))
    assert (code, events) == (128 + 15, set())
    assert "has loaded torch without lightning-perf" in capsys.readouterr().err.splitlines()[-1]
