"""States and stacks of worker processes.

A forked worker registers a handler of ``faulthandler`` for a real-time signal that nothing else uses. It is written in
C, needs no interpreter lock and restarts system calls: so even a deadlocked worker writes its stacks, and nothing else
changes. A signal is only sent during a hang, and only to processes with the handler.
"""

import faulthandler
import os
import re
import signal
import sys
import time
import weakref
from multiprocessing import process
from typing import Any

from lightning_perf.interrupts import suppress
from lightning_perf.probes.host_lines.calls import shown_file
from lightning_perf.probes.sampled_steps.code_lines import USER, owner_of
from lightning_perf.probes.telemetry.processes import read_bytes
from lightning_perf.records import WorkerState

_SIGNAL = signal.SIGRTMAX - 5 if sys.platform.startswith("linux") else 0
_MAX_WORKERS = 32
_ANSWER_S = 0.5
_STATES = {"R": "running", "S": "sleeping", "D": "waiting for a disk", **dict.fromkeys("ZX", "ended"),
           **dict.fromkeys("Tt", "stopped")}  # fmt: skip
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')
_WORKER_LOOP = "_worker_loop"  # outer frames belong to the process that forked

_output: int | None = None
"""File to which processes forked from now on write their stacks, of the last run that began; None outside runs."""
_is_registered = False


class Workers:
    """Processes that multiprocessing has started from this one.

    Each run has a file of its own, because runs in several threads must not close one another's.
    """

    def __init__(self) -> None:
        self._file: int | None = None
        self._closing: weakref.finalize[[int], Workers] | None = None

    def open(self) -> None:
        """Let processes that are forked from now on write their stacks."""
        global _output, _is_registered
        self.close()  # of a run whose end was missed
        if not _SIGNAL or not hasattr(os, "memfd_create") or signal.getsignal(_SIGNAL) is not signal.SIG_DFL:
            return
        self._file = _output = os.memfd_create("lightning-perf stacks")
        self._closing = weakref.finalize(self, os.close, self._file)
        if not _is_registered:
            _is_registered = True
            os.register_at_fork(after_in_child=_register)

    def close(self) -> None:
        """Undo ``open``. Can be called twice."""
        global _output
        if self._closing is not None and self._closing.alive:
            _output = None if _output == self._file else _output
            self._file = None
            self._closing()

    def states(self, with_stacks: bool) -> tuple[tuple[WorkerState, ...], str]:
        """Return the states of all workers, and their stacks as text."""
        found: list[WorkerState] = []
        text = ""
        children: set[Any] = getattr(process, "_children", set())  # ``active_children`` would wait for ended ones
        for pid in sorted(worker.pid or 0 for worker in list(children))[:_MAX_WORKERS]:
            status = read_bytes(f"/proc/{pid}/stat").rpartition(b")")[2].split()
            state = _STATES.get(status[0].decode(), "") if status else ""
            wait = read_bytes(f"/proc/{pid}/wchan").decode().strip("0")
            stacks = _stacks_of(pid, self._file) if with_stacks and self._file is not None else ""
            found.append(WorkerState(pid=pid, state=state, waits_in=wait, where=_users_line(stacks)))
            text += f"Process {pid}: {state or 'state unknown'} {wait}\n{stacks}\n"
        return tuple(found), text


def _register() -> None:
    if _output is not None:
        with suppress(RuntimeError, OSError, ValueError):
            faulthandler.register(_SIGNAL, file=_output, all_threads=True)


def _stacks_of(pid: int, file: int) -> str:
    caught = re.search(rb"SigCgt:\s*([0-9a-f]+)", read_bytes(f"/proc/{pid}/status"))
    if caught is None or not int(caught[1], 16) >> (_SIGNAL - 1) & 1:
        return ""
    os.ftruncate(file, 0)
    os.lseek(file, 0, os.SEEK_SET)  # of the worker too, which shares the open file
    with suppress(OSError):
        os.kill(pid, _SIGNAL)
    until_s, size = time.monotonic() + _ANSWER_S, 0
    while time.monotonic() < until_s:
        time.sleep(_ANSWER_S / 20)
        before, size = size, os.fstat(file).st_size
        if 0 < before == size:
            break
    return os.pread(file, size, 0).decode(errors="replace")


def _users_line(stacks: str) -> str:
    for text in stacks.splitlines():
        frame = _FRAME.fullmatch(text)
        if frame is not None and frame["function"] == _WORKER_LOOP:
            break
        if frame is not None and owner_of(frame["file"]) == USER:
            return f"{shown_file(frame['file'])}:{frame['line']} in {frame['function']}"
    return ""
