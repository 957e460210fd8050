"""The probes of one run as a set: an error switches only its own probe off, and observed steps are scheduled."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, Protocol

from lightning_perf.interrupts import raise_if_from_signal
from lightning_perf.records import ProbeFailure

from .clock import NEVER
from .loop import LoopProbe

_log = logging.getLogger("lightning_perf")

_ESSENTIAL = ("setup", "steps")
"""Without these nothing can be measured."""


class StepProbe(Protocol):
    """A probe that observes single steps; if it has a method ``batch_ends()``, that is called at their ends."""

    @property
    def next_step(self) -> int:
        """Index of the next step that this probe must observe; `NEVER` if none."""

    def batch_begins(self, batch: Any) -> None:
        """Handle the start of a step that this probe asked for."""


class ProbeSet:
    """Calls the probes of one run.

    Attributes:
        loop: Times all steps; None before the run, and after measuring has failed.
        failures: Probes and reports that raised and are off for the rest of the run, by name.
    """

    def __init__(self) -> None:
        self.loop: LoopProbe | None = None
        self.failures: dict[str, ProbeFailure] = {}
        self._main_loop: LoopProbe | None = None  # kept for the number of the step
        self._observers: dict[str, StepProbe] = {}
        self._at_end: dict[str, Callable[[], None]] = {}
        self._on_removal: dict[str, Callable[[], None]] = {}
        self._begun: dict[str, None] = {}  # probes that observe the step under way; ordered
        self._is_step_requested = False
        self._known_causes: set[str] = set()  # of failures: each is worth one warning

    def start(self, loop: LoopProbe, give_up: Callable[[], None]) -> None:
        """Begin to time steps.

        Args:
            loop: Times them.
            give_up: Called once measuring has failed; restores everything.
        """
        self.loop = self._main_loop = loop
        self._on_removal["measuring"] = give_up

    def add(self, name: str, probe: StepProbe | None, close: Callable[[], None] | None = None) -> None:
        """Let a probe observe steps; None adds nothing.

        Args:
            name: Its name in `failures` and in messages.
            probe: The probe. Probes are called in the order in which they were added.
            close: Restores what the probe patched; called if the probe is switched off.
        """
        if probe is None or name in self.failures:
            return
        self._observers[name] = probe
        at_end = getattr(probe, "batch_ends", None)
        if at_end is not None:
            self._at_end[name] = at_end
        if close is not None:
            self._on_removal[name] = close

    def is_observing(self, name: str) -> bool:
        """Return whether a probe was added and is not switched off."""
        return name in self._observers

    # -- steps that more than the clock observes ----------------------------------------------------------------------

    def step_begins(self, loop: LoopProbe, batch: Any) -> None:
        """Start a step that probes observe."""
        loop.is_instrumented_step = True
        if loop.main.is_in_batch:  # the previous batch-end hook was not called
            self.call("steps", loop.main.batch_ends)
        self.call("steps", loop.batch_begins, batch)
        for name in tuple(self._observers):
            probe = self._observers.get(name)  # a failure of another probe may have removed it
            if probe is not None and probe.next_step <= loop.main.n_steps:
                self._begun[name] = None
                self.call(name, probe.batch_begins, batch)

    def step_ends(self, loop: LoopProbe, batch: Any) -> None:
        """End such a step and schedule the next one."""
        loop.is_instrumented_step = False
        for name in self._begun:
            at_end = self._at_end.get(name)
            if at_end is not None:
                self.call(name, at_end)
        self._begun.clear()
        self.call("steps", loop.batch_ends, batch)
        loop.next_instrumented_step = min((probe.next_step for probe in self._observers.values()), default=NEVER)
        if self._is_step_requested:  # perhaps by another thread between these lines
            self._is_step_requested = False
            loop.next_instrumented_step = 0

    def observe_next_step(self) -> None:
        """Let the probes observe the next step, even if they did not ask for it."""
        self._is_step_requested = True
        if self.loop is not None:
            self.loop.next_instrumented_step = 0

    # -- errors -------------------------------------------------------------------------------------------------------

    def call(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a probe or report unless it is off; return None if it is, or if it raises and is switched off."""
        if name in self.failures:
            return None
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - reported by switch_off
            self.switch_off(name, error)
            return None

    def switch_off(self, name: str, error: Exception, warning: str = "") -> None:
        """Record that a probe or report failed and call it no more; the first failure of each cause is logged.

        Args:
            name: The probe or report.
            error: What it raised.
            warning: What is logged; empty for the usual line.
        """
        raise_if_from_signal(error)
        if name in self.failures:
            return
        step = self._main_loop.main.n_steps if self._main_loop is not None else 0
        failure = ProbeFailure(probe=name, error=f"{type(error).__name__}: {error}", step=step)
        cause = _cause_of(error)
        is_news = cause not in self._known_causes
        self._known_causes.add(cause)
        self.failures[name] = failure
        usual = (
            f"PerfDoctor switched its probe {name!r} off for this run ({failure.error}); the training is not affected."
        )
        level = logging.WARNING if is_news else logging.DEBUG
        _log.log(level, "%s", warning or usual, exc_info=_log.isEnabledFor(logging.DEBUG))
        removed: tuple[str, ...] = (name,)
        if name in _ESSENTIAL:
            self.loop = None
            removed = (*self._observers, "measuring")
        for each in removed:
            self._remove(each)

    def _remove(self, name: str) -> None:
        self._observers.pop(name, None)
        self._at_end.pop(name, None)
        close = self._on_removal.pop(name, None)
        if close is not None:
            self.call("teardown" if name == "measuring" else f"{name} teardown", close)


def _cause_of(error: Exception) -> str:
    """Return what made something fail: the same for every file that the same folder or disk refuses."""
    cause = error.__cause__ or error
    number = cause.errno if isinstance(cause, OSError) else None
    return os.strerror(number) if number is not None else f"{type(cause).__name__}: {cause}"
