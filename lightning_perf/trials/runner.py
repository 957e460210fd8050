"""Run the user's command for a job in processes that end with it, and report how it ended."""

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from lightning_perf.errors import TrialError
from lightning_perf.records.base import Record
from lightning_perf.records.files import require_free_space, write_whole
from lightning_perf.trials.job import RESULT_FILE, Job, Result, environment_for, read_events, read_result
from lightning_perf.trials.reach import Notice, ignores_environment, watch_reach, where_it_ended


class CommandError(TrialError):
    """Raised if a command ended without a measurement; ``log`` holds the last lines of its output."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


_SUPERVISOR = Path(__file__).with_name("process_supervisor.py")
REMOTE_OFF = {
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
    "COMET_START_ONLINE": "0",
    "LIGHTNING_PERF_HISTORY": "off",
}
"""Keeps trials from services that scripts use besides Lightning's loggers, and from the history of runs."""

LEFT_BEHIND = (RESULT_FILE, "events", "ended.json")
"""Files that a run leaves in its folder."""

_TAIL_LINES = 12
_TAIL_BYTES = 64 * 1024


class Ended(Record, frozen=True, kw_only=True):
    """End of a command.

    Attributes:
        code: Exit code, negative for a signal; None if it never started, or cannot be killed.
        reason: Why it was ended or not started; empty if it ended by itself.
        wall_s: Seconds from its start until none of its processes was left.
        result: What it measured; None if it wrote nothing.
        events: Stages that its processes reached.
        log: The last lines that it printed.
    """

    code: int | None
    reason: str
    wall_s: float
    result: Result | None
    events: frozenset[str]
    log: str

    @property
    def failure(self) -> str:
        """Why there is no measurement, in one line; empty if there is one."""
        if self.reason:
            return self.reason
        if self.result is not None:
            return self.result.reason
        if self.code:
            return f"{describe_code(self.code)}: {last_line(self.log)}"
        return f"it ended without training{where_it_ended(self.events)}"


def run_supervised(
    command: Sequence[str],
    job: Job,
    time_limit_s: float | None = None,
    memory_limit_bytes: int | None = None,
    environment: dict[str, str] | None = None,
    warn: Callable[[str], None] | None = None,
) -> Ended:
    """Run a command with a job; none of its processes is left when this returns or raises.

    The command is ended soon after the measured script, so that a shell script does not go on. A training that
    lightning-perf cannot reach is ended, because it would run to its end without a measurement. The job's folder gets
    ``log.txt`` and the other files, which replace those of an earlier run.

    Args:
        command: The user's command.
        job: The job.
        time_limit_s: Seconds after which the command is killed; None for no limit.
        memory_limit_bytes: Memory of all its processes together, without mapped files, above which it is killed; None
            for no limit.
        environment: Variables added to this process's own.
        warn: Called with one line if no Lightning Trainer was imported after a minute.

    Raises:
        KeyboardInterrupt: After everything was killed.
        TrialError: The disk of the job's folder is nearly full.
    """
    folder = Path(job.folder)
    try:
        require_free_space(folder, 0)  # another training may have filled this disk
    except OSError as error:
        raise TrialError(f"cannot run the command: {error}") from error
    for name in LEFT_BEHIND:  # of an earlier run in the same folder
        (folder / name).unlink(missing_ok=True)
    remote_off = dict(REMOTE_OFF)
    if os.environ.get("WANDB_MODE") == "disabled":  # which turns off even more
        del remote_off["WANDB_MODE"]
    variables = environment_for(job, job.write(), {**os.environ, **remote_off, **(environment or {})})
    variables.setdefault("WANDB_DIR", str(folder))
    spec = {
        "command": list(command),
        "time_limit_s": time_limit_s,
        "memory_limit_bytes": memory_limit_bytes,
        "ended": str(folder.resolve() / "ended.json"),
        "result": str(folder.resolve() / RESULT_FILE),
        "events": str(folder.resolve() / "events"),
    }
    write_whole(folder / "spec.json", json.dumps(spec).encode())
    unreached: list[str] = []

    def notice(seen: Notice) -> None:
        if seen.is_final:
            unreached.append(seen.text)
            _end(supervisor)
        elif warn is not None:
            warn(seen.text)

    with (folder / "log.txt").open("wb") as log:
        supervisor = subprocess.Popen(
            [sys.executable, "-I", str(_SUPERVISOR), str((folder / "spec.json").resolve())],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=variables,
            start_new_session=True,
        )
        try:
            with watch_reach(supervisor.pid, folder, notice):
                supervisor.wait()
        finally:
            _end(supervisor)
            _wait_uninterrupted(supervisor)
    try:
        ended = json.loads((folder / "ended.json").read_bytes())
    except (OSError, ValueError) as error:
        raise TrialError(
            f"the process that watches the command ended badly ({error}); see {folder / 'log.txt'}"
        ) from error
    if unreached:
        ended["reason"] = f"it was ended after {ended['wall_s']:.0f} s: {unreached[0]}"
    return Ended(
        **ended, result=read_result(folder), events=frozenset(read_events(folder)), log=read_tail(folder / "log.txt")
    )


def _end(supervisor: subprocess.Popen[bytes]) -> None:
    """Make the supervisor kill the command, by closing its standard input."""
    assert supervisor.stdin is not None
    supervisor.stdin.close()


def _wait_uninterrupted(supervisor: subprocess.Popen[bytes]) -> None:
    """Wait for the supervisor, which never takes long, even if the user presses Ctrl-C again."""
    while True:
        try:
            supervisor.wait()
            return
        except KeyboardInterrupt:
            continue


# -- commands without a measurement ------------------------------------------------------------


def read_tail(log: Path) -> str:
    """Return the last lines of a log."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    lines = [line.rstrip().rpartition("\r")[2] for line in text.splitlines()]
    return "\n".join([line for line in lines if line.strip()][-_TAIL_LINES:])


def last_line(log: str) -> str:
    """Return the last line of a log, where Python prints the error."""
    return log.rstrip().rpartition("\n")[2].strip()[:300] or "it printed nothing"


def describe_code(code: int) -> str:
    """Return an exit code in words."""
    if code == -signal.SIGKILL:
        return "it was killed by signal 9, as the kernel does where memory runs out"
    return f"it was killed by signal {-code}" if code < 0 else f"it exited with {code}"


def check_command(command: Sequence[str]) -> None:
    """Raise ``TrialError`` if there is no command, or if it makes Python ignore its environment."""
    if not command:
        raise TrialError("there is no command; write it after --, e.g. lightning-perf trial -- python train.py")
    flag = ignores_environment(command)
    if flag is not None:
        raise TrialError(
            f"{' '.join(command[:2])} makes Python ignore PYTHONPATH or site (flag {flag}), which loads lightning-perf "
            "into the training; remove the flag"
        )


def _has_input() -> bool:
    """Return whether a file or a pipe with content is the standard input of this process."""
    try:
        import fcntl
        import termios

        status = os.fstat(0)
        if stat.S_ISFIFO(status.st_mode):
            return any(fcntl.ioctl(0, termios.FIONREAD, bytes(4)))
        return stat.S_ISREG(status.st_mode) and status.st_size > 0
    except (ImportError, OSError):
        return False


def explain(command: Sequence[str], ended: Ended, what: str = "the command") -> str:
    """Return why a command could not be measured."""
    reason = ended.failure
    if "EOFError" in reason:
        reason += " (it reads input, of which there is none: pass the values as arguments)"
    elif ended.result is None and _has_input():
        reason += " (runs get no standard input: if the script needs it, let it read a file)"
    return f"{what} could not be measured ({' '.join(command)}): {reason}"
