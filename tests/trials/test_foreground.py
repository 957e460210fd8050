"""A command in the foreground: its exit code is returned, and it always ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_perf.errors import TrialError
from lightning_perf.trials.foreground import run_in_foreground
from lightning_perf.trials.job import Job

from .test_process_supervisor import is_alive, wait_for

FRONT = """
import sys
from lightning_perf.trials.foreground import run_in_foreground
from lightning_perf.trials.job import Job
command = [sys.executable, "-c", "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(600)"]
print(run_in_foreground(command, Job(mode="run", folder="job"))[0])
"""


@pytest.mark.parametrize(
    ("code", "told"),
    [("pass", 0), ("raise SystemExit(9)", 9), ("import os; os.kill(os.getpid(), 11)", 128 + 11)],
)
def test_exit_code_is_reported_as_a_shell_does(tmp_path: Path, code: str, told: int) -> None:
    assert run_in_foreground([sys.executable, "-c", code], Job(mode="run", folder=str(tmp_path))) == (told, {"python"})


def test_environment_is_passed_on(tmp_path: Path) -> None:
    code = "import os, sys; sys.exit(int(os.environ['ANSWER']))"
    job = Job(mode="run", folder=str(tmp_path))
    assert run_in_foreground([sys.executable, "-c", code], job, {"ANSWER": "42"})[0] == 42


def test_command_that_cannot_be_started_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(TrialError, match="no-such-command: No such file"):
        run_in_foreground(["no-such-command"], Job(mode="run", folder=str(tmp_path)))


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_command_ends_when_its_parent_ends(tmp_path: Path, sent: signal.Signals) -> None:
    if sent == signal.SIGKILL and sys.platform != "linux":
        pytest.skip("only Linux tells a process of its parent's death")
    parent = subprocess.Popen(
        [sys.executable, "-c", FRONT], cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    pid = tmp_path / "pid"
    assert wait_for(lambda: pid.exists() and pid.read_text())
    parent.send_signal(sent)
    told, _ = parent.communicate(timeout=60)
    assert wait_for(lambda: not is_alive(int(pid.read_text())))
    if sent == signal.SIGTERM:
        assert told.strip() == str(128 + 15)


IN_TERMINAL = """
import os, pty
from lightning_perf.trials.foreground import _is_in_foreground
pid, terminal = pty.fork()
if pid == 0:
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    told = [_is_in_foreground()]
    if os.fork() == 0:
        os.setpgid(0, 0)  # as a shell does with a command in the background
        print(told[0], _is_in_foreground(), flush=True)
        os._exit(0)
    os.wait()
    os._exit(0)
seen = b""
try:
    while chunk := os.read(terminal, 100):
        seen += chunk
except OSError:
    pass
print(seen.decode())
"""


def test_terminal_interrupts_reach_the_command_when_it_is_in_the_foreground() -> None:
    done = subprocess.run([sys.executable, "-c", IN_TERMINAL], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["True", "False"], done.stderr
