"""Run a command in the foreground as the shell would: same terminal, same signals, same exit code."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from lightning_perf.errors import TrialError
from lightning_perf.trials.job import Job, environment_for, read_events, warn
from lightning_perf.trials.reach import watch_reach

_PARENT_DEATH = 1  # PR_SET_PDEATHSIG of linux/prctl.h
_FORWARDED = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")


def run_in_foreground(
    command: Sequence[str], job: Job, environment: dict[str, str] | None = None
) -> tuple[int, set[str]]:
    """Run a command with a job; ``environment`` is added to this process's own.

    The terminal sends Ctrl-C to the command itself; other signals are forwarded. If this process is killed, the command
    gets SIGTERM. If the training runs without lightning-perf, one line on stderr says so.

    Returns:
        Its exit code as a shell reports it (128 + n for signal n), and the stages it reached.

    Raises:
        TrialError: It cannot be started.
    """
    variables = environment_for(job, job.write(), {**os.environ, **(environment or {})})
    try:
        child = subprocess.Popen(list(command), env=variables, preexec_fn=_end_with_parent())
    except OSError as error:
        raise TrialError(f"{command[0]}: {error.strerror or error}; give the command as you would type it") from error

    def forward(number: int, _: Any) -> None:
        # Checked on each signal: the shell may move a command to the background and back.
        if number != signal.SIGINT or not _is_in_foreground():
            child.send_signal(number)

    names = [name for name in ("SIGINT", *_FORWARDED) if hasattr(signal, name)]
    before = {name: signal.signal(getattr(signal, name), forward) for name in names}
    try:
        with watch_reach(child.pid, job.folder, lambda notice: warn(notice.text)):
            code = child.wait()
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)
    return (code if code >= 0 else 128 - code), read_events(job.folder)


def _is_in_foreground() -> bool:
    """Return whether Ctrl-C in the terminal reaches this process's group, with the command in it."""
    try:
        terminal = os.open(os.ctermid(), os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _end_with_parent() -> Any:
    """Return a function for the child that requests SIGTERM when its parent dies; None if the system cannot do it."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)  # loaded before the fork

    return lambda: library.prctl(_PARENT_DEATH, signal.SIGTERM, 0, 0, 0)
