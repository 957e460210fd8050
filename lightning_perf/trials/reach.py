"""Find out whether lightning-perf is loaded in a command's training: by its arguments, while it runs, and afterwards.

Each Python process that runs the bootstrap adds its process id to the job's ``events``. A process that has loaded torch
and is not among them trains without lightning-perf and can no longer be reached. Without such a process, the training
may not have started: a script may prepare data for minutes first.
"""

import contextlib
import os
import re
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from lightning_perf.trials.job import BOOTSTRAP, JOB_VARIABLE, read_events, read_pids

AFTER_S = 60.0
"""Time before a command's processes are checked, and before a process counts as unreached."""

EVERY_S = 5.0

_PYTHON_OPTIONS = re.compile("-(?P<flags>[^cmWX-]*)(?P<takes>[cmWX]?)(?P<value>.*)(?<!^-)", re.S)
"""Matches options of Python: ``-uE``, ``-Werror``, ``-mtrain``, ``--version``; not ``-``, which is a script."""

_SHELL = re.compile("(ba|da|a|k|z)?sh")
_STARTS_PYTHON = re.compile(r"python|torchrun$|accelerate$|deepspeed$|mpirun$|srun$|make$|.*\.(py|sh)$")
"""Matches names of programs, in a shell script, that are Python or may start it."""

_FORKED_WITHOUT_EXEC = 0x40
"""``PF_FORKNOEXEC`` of linux/sched.h, among the flags in /proc/PID/stat."""

_UNREACHED = "python -I, -E and -S ignore PYTHONPATH; env -i, containers and remote launchers do not pass it on"

_WHERE = {
    "fit": "Trainer.fit was called and trained no batch",
    "trainer": "it built a Trainer, but never called its fit",
    "refused": "its Python cannot import lightning_perf, which must be installed where the training runs",
    "lightning": "it imported Lightning, but never built a Trainer",
    "python": "it started Python, but never imported Lightning's Trainer",
}
"""How far a command got, by the event that it reached; the latest event first."""


class Notice(NamedTuple):
    """Why a command has not imported a Lightning Trainer yet, and what to do, in one line.

    ``is_final`` is True if a training runs that lightning-perf can no longer reach.
    """

    text: str
    is_final: bool


@contextlib.contextmanager
def watch_reach(pid: int, folder: str | Path, notify: Callable[[Notice], None]) -> Iterator[None]:
    """Watch a command from a thread until Lightning's Trainer is imported in one of its processes.

    Args:
        pid: Process id of the command, or of the process that starts it.
        folder: Folder of the job.
        notify: Called from the thread with at most one notice that is not final, and one that is.
    """
    is_over = threading.Event()

    def watch() -> None:
        pause_s = AFTER_S
        has_notified = False
        while not is_over.wait(pause_s):
            pause_s = EVERY_S
            if read_events(folder) & {"lightning", "refused"}:
                return
            try:
                notice = notice_about(pid, folder)
                if notice.is_final or not has_notified:
                    notify(notice)
            except Exception:  # noqa: BLE001 - the command continues unwatched; its end is explained anyway
                return
            has_notified = True
            if notice.is_final:
                return

    thread = threading.Thread(target=watch, name="lightning-perf-reach", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(timeout=EVERY_S)


def notice_about(pid: int, folder: str | Path) -> Notice:
    """Return a notice about the processes of a command, a minute or more after its start."""
    reached = read_pids(folder)
    may_be_reached = False
    trains = waits = ""
    for process in _process_tree(pid):
        with contextlib.suppress(psutil.Error, OSError):
            if _pids_inside(process.pid) & reached:
                may_be_reached = True
            elif _is_unreached(process.pid):
                has_torch = _has_torch(process.pid)
                if not has_torch and (process.pid == pid or not process.name().startswith("python")):
                    continue
                text = f"{_shown(process)} {'has loaded torch' if has_torch else 'runs'} without lightning-perf"
                text = f"{text}: {_why(process)}"
                if _is_followed(process):
                    may_be_reached = True
                    text += " if this is the training; otherwise wait for the programs that the command starts next"
                trains, waits = (trains or text, waits) if has_torch else (trains, waits or text)
    if trains:
        return Notice(trains, is_final=not may_be_reached)
    after = f"after {AFTER_S:.0f} s the command"
    text = f"{after} has not started a Python that lightning-perf reaches; still waiting for one ({_UNREACHED})"
    if reached:
        text = (
            f"{after} has started Python, but not imported Lightning's Trainer; still waiting for it: without a "
            "Trainer there is nothing to diagnose"
        )
    elif waits:
        text = waits
    return Notice(text, is_final=False)


def _process_tree(pid: int) -> list[psutil.Process]:
    try:
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    except psutil.Error:
        return []


def _pids_inside(pid: int) -> set[int]:
    """Return a process's id, and its ids in PID namespaces (containers)."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("NSpid:"):
                return {pid, *map(int, line.split()[1:])}
    return {pid}


def _is_unreached(pid: int) -> bool:
    """Return whether a process without the bootstrap has run its own program for ``AFTER_S``.

    A copy of its parent, such as a loader worker, does not count.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:  # it has ended, or the system has no /proc
        return False
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return age_s >= AFTER_S and not int(fields[6]) & _FORKED_WITHOUT_EXEC


def _has_torch(pid: int) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", "rb") as file:
        return any(b"/libtorch" in line for line in file)
    return False


def _is_followed(process: psutil.Process) -> bool:
    """Return whether a shell that waits for the process may then start a Python that can be reached."""
    for parent in process.parents():
        if _SHELL.fullmatch(parent.name()):
            return has_next_python(_script(parent), process.cmdline())
        if parent.name().startswith("python"):  # the supervisor, or a program of the user
            break
    return False


def _script(shell: psutil.Process) -> str:
    """Return the script that a shell runs, given after ``-c`` or as a file; empty if it reads another input."""
    words = iter(shell.cmdline()[1:])
    is_given = False
    for word in words:
        if re.fullmatch("[-+][a-z]*o", word, re.I):  # takes a value: bash -eo pipefail
            next(words, None)
        elif word.startswith(("-", "+")):
            is_given = is_given or ("c" in word and not word.startswith("--"))
        else:
            return word if is_given else (Path(shell.cwd()) / word).read_text(encoding="utf-8", errors="replace")
    return ""


def has_next_python(script: str, running: Sequence[str]) -> bool:
    """Return whether a shell script may start a Python that reads PYTHONPATH after the command that runs now."""
    commands: list[list[str]] = []
    for command in re.split(r"[;&|()\n]", script):
        words = [word.strip("\"'") for word in command.split()]
        first = next((i for i, word in enumerate(words) if _STARTS_PYTHON.match(Path(word).name)), None)
        if first is not None:
            commands.append(words[first:])
    is_now = [command[: len(running)] == list(running) for command in commands]
    rest = commands[is_now.index(True) + 1 :] if any(is_now) else commands
    return any(ignores_environment(command) is None for command in rest)


def _shown(process: psutil.Process) -> str:
    words = shlex.join(process.cmdline()).replace("\n", " ")
    return f"process {process.pid} ({words if len(words) <= 80 else words[:79] + '…'})"


def _why(process: psutil.Process) -> str:
    """Return why a process was not reached, and what to do."""
    flag = ignores_environment(process.cmdline())
    if flag is not None:
        return f"{flag} makes Python ignore PYTHONPATH or site, which loads lightning-perf; remove the flag"
    environment = process.environ()
    if JOB_VARIABLE not in environment:
        return (
            "its environment lacks the variables that lightning-perf set (env -i, sudo, a launcher?); pass on "
            f"PYTHONPATH and {JOB_VARIABLE}"
        )
    if str(BOOTSTRAP) not in environment.get("PYTHONPATH", "").split(os.pathsep):
        return "the command replaces PYTHONPATH, which loads lightning-perf; extend it: PYTHONPATH=…:$PYTHONPATH"
    if not process.name().startswith("python"):
        return "it is not a Python interpreter that reads PYTHONPATH (a frozen program?); train with python"
    return f"its Python did not run {BOOTSTRAP / 'sitecustomize.py'}; make sure that it can be read there"


def where_it_ended(events: frozenset[str] | set[str]) -> str:
    """Return how far the command got, as the end of a sentence."""
    last = next((event for event in _WHERE if event in events), None)
    return ": " + (_WHERE[last] if last else f"it never started a Python that lightning-perf reached ({_UNREACHED})")


def ignores_environment(command: Sequence[str]) -> str | None:
    """Return the flag of the command that keeps Python from reading PYTHONPATH, if any."""
    if not command or not Path(command[0]).name.startswith("python"):
        return None
    takes_value = False
    for argument in command[1:]:
        if takes_value:
            takes_value = False
            continue
        match = _PYTHON_OPTIONS.fullmatch(argument)
        if match is None:
            return None
        if set(match["flags"]) & set("IES"):
            return argument
        if match["takes"] in ("c", "m"):
            return None
        takes_value = bool(match["takes"]) and not match["value"]
    return None
