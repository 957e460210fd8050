"""Guard Kineto's session, of which a process has only one: the user's profilers take precedence.

If a second profiler starts inside a first one's session, torch ends that session, and reading the first one crashes the
process. So no window opens beside another profiler, and a window ends before another profiler starts.
"""

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch.autograd.profiler
import torch.profiler

from lightning_perf.probes.atomic_reads import live_objects
from lightning_perf.seams import Undos, change_attribute

_ENTRIES = ("_prepare_profiler", "_enable_profiler")
"""Torch's functions through which every profiler starts, in ``torch.autograd.profiler``."""

_open_window: "dict[str, SessionGuard]" = {}
"""The guard of the window that is open in this process, in whichever thread."""


class SessionGuard:
    """Watches for another profiler that starts while a window is open, and calls ``on_other`` before it starts.

    ``has_prepared`` is False until torch has prepared a profiler, e.g. after an interrupt while it did so.
    """

    def __init__(self, on_other: Callable[[], None], undos: Undos) -> None:
        self.has_prepared = False
        self._on_other = on_other
        self._undos = undos
        self._is_own = False
        self._thread = threading.get_ident()

    def install(self) -> None:
        """Wrap torch's functions until the undos are called.

        Raises:
            RuntimeError: A window is open in another thread.
        """
        self._undos.note(self._release)
        if _open_window.setdefault("guard", self) is not self:  # atomic
            raise RuntimeError("another window is open in this process")
        for name in _ENTRIES:
            inner = getattr(torch.autograd.profiler, name, None)
            if inner is not None:
                change_attribute(torch.autograd.profiler, name, partial(self._call, inner), self._undos)

    def _release(self) -> None:
        if _open_window.get("guard") is self:
            del _open_window["guard"]

    @contextmanager
    def own_calls(self) -> Iterator[None]:
        """Return a context in which the window's own profiler starts."""
        self._is_own = True
        try:
            yield
        finally:
            self._is_own = False

    def _call(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self._is_own and threading.get_ident() == self._thread:
            self._on_other()
        outcome = inner(*args, **kwargs)
        self.has_prepared = True
        return outcome


def is_profiler_started() -> bool:
    """Return whether a profiler records in this process, or warms up, which torch itself does not report.

    A profiler that warms up is searched for among all objects, but only if the user made a profiler with a schedule.
    """
    enabled = getattr(torch.autograd, "_profiler_enabled", None)
    if _open_window or (enabled is not None and enabled()):
        return True
    if torch.profiler.profiler.PROFILER_STEP_NAME not in _step_counts():
        return False
    if gc.get_freeze_count():
        return True  # frozen objects are not listed
    kind = torch.autograd.profiler.profile
    profilers = [one for one in live_objects() if type(one) is kind]
    return any(one.entered and one.kineto_results is None for one in profilers)


def _step_counts() -> dict[str, int]:
    """Return steps by profiler: torch adds each scheduled profiler and removes it when its ``with`` block ends."""
    tracker = getattr(torch.autograd.profiler, "KinetoStepTracker", None)
    counts: dict[str, int] = getattr(tracker, "_step_dict", {})
    return counts


@contextmanager
def uncounted() -> Iterator[None]:
    """Return a context in which torch does not count the steps of a new profiler, so that it is not searched for."""
    counts = _step_counts()
    name = torch.profiler.profiler.PROFILER_STEP_NAME
    was_counted = name in counts
    try:
        yield
    finally:
        if not was_counted:
            counts.pop(name, None)
