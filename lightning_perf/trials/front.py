"""Runs a command in the foreground as the shell would: same terminal, same signals, same exit code."""

from __future__ import annotations

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


def run_in_front(command: Sequence[str], job: Job, environment: dict[str, str] | None = None) -> tuple[int, set[str]]:
    """Runs a command with a job.

    Ctrl-C reaches the command from the terminal itself; other signals are handed on. Should this process be killed, the
    command is asked to end. One line on standard error says so where its training runs without us.

    Args:
        command: The user's.
        job: What is to be done inside.
        environment: Variables on top of this process's own.

    Returns:
        Its exit code as a shell tells it (128 + n for signal n), and the stages it reached.

    Raises:
        TrialError: It cannot be started.
    """
    variables = environment_for(job, job.write(), {**os.environ, **(environment or {})})
    tells_child = _tells_child()
    try:
        child = subprocess.Popen(list(command), env=variables, preexec_fn=tells_child)
    except OSError as error:
        raise TrialError(f"{command[0]}: {error.strerror or error}; give the command as you would type it") from error

    def forward(number: int, _: Any) -> None:
        # Put to the background and back by the shell, a command's place may change: it is asked for when it matters.
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
    """Whether Ctrl-C in the terminal reaches this process's group, the command in it, whatever its input is."""
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


def _tells_child() -> Any:
    """What the child does before it starts, where the system can tell it of its parent's death."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)  # loaded before the fork

    def ask() -> None:
        library.prctl(_PARENT_DEATH, signal.SIGTERM, 0, 0, 0)

    return ask
