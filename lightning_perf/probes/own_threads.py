"""What PerfDoctor's threads need to leave garbage collections, and so the user's finalizers, to the training's threads.

CPython starts a collection in the thread whose allocation exceeds a threshold. (3.12 may also run one that another
thread asked for, in whichever thread holds the interpreter lock next.) These are functions, called without ``with``,
because bound methods are objects that the collector counts.
"""

from __future__ import annotations

import gc
import os
import threading

_MARGIN = 2000  # containers allocated in one sample: some hundred

_lock = threading.Lock()
_n_inside = 0
_usual = _raised = (0, 0, 0)


def hold_collections() -> None:
    """Let allocations start no collection until ``release_collections``; several threads may do so at once.

    The first threshold is raised rather than collections disabled: code of the user's that runs meanwhile, and that
    reads the thresholds to restore them later, gets some that differ little.
    """
    global _n_inside, _usual, _raised
    _lock.acquire()
    _n_inside += 1
    if _n_inside == 1:
        _usual = gc.get_threshold()
        first, second, third = _usual
        _raised = (first + _MARGIN if first else 0, second, third)
        gc.set_threshold(_raised[0], second, third)
    _lock.release()


def release_collections() -> None:
    """Restore the thresholds after ``hold_collections``, unless somebody has set others since."""
    global _n_inside
    _lock.acquire()
    _n_inside -= 1
    if _n_inside == 0 and gc.get_threshold() == _raised:
        first, second, third = _usual
        gc.set_threshold(first, second, third)
    _lock.release()


def usual_thresholds() -> tuple[int, ...]:
    """Return the collector's thresholds as they are outside ``hold_collections``."""
    return _usual if _n_inside else gc.get_threshold()


def _after_fork() -> None:
    """Restore the thresholds in a process in which the threads that raised them do not run."""
    global _lock, _n_inside
    _lock = threading.Lock()
    if _n_inside:
        _n_inside = 1
        release_collections()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class StopFlag:
    """A flag to wait for, as ``threading.Event``, which would allocate a lock for each wait."""

    __slots__ = ("_is_set", "_lock")

    def __init__(self) -> None:
        self._is_set = False
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """End all waiting; a second call does nothing."""
        if not self._is_set:
            self._is_set = True
            self._lock.release()

    def is_set(self) -> bool:
        """Return whether it was set."""
        return self._is_set

    def wait(self, seconds: float) -> bool:
        """Wait at most so many seconds; return whether the flag is set."""
        if not self._is_set and self._lock.acquire(True, seconds):
            self._lock.release()
        return self._is_set
