"""Open and call the probes of one run, isolate their errors, schedule observed steps, and make the session."""

import logging
import os
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Literal, TypeVar

import msgspec

from lightning_perf import __version__
from lightning_perf.interrupts import error_text, type_and_message
from lightning_perf.records import Overhead, ProbeFailure, Run, Session

from .base import Probe, RunContext, all_probes
from .clock import NEVER
from .telemetry.probe import with_cost
from .timeline.loop import LoopTimer
from .timeline.spans import span_cost_ns

Status = Literal["running", "finished", "interrupted", "failed"]
AnyProbe = TypeVar("AnyProbe", bound=Probe)

BUDGET_US = 20.0
"""Cost per step that measuring may have, beyond what Lightning charges for any callback."""

BACKWARD_EVENTS = ("before_backward", "after_backward", "before_zero_grad")

_EXPENSIVE_SHARE = 0.02  # of the median step: back off if measuring costs more than this and the budget
_FAILED = "measuring failed; see probes_off"

_log = logging.getLogger("lightning_perf")

_ESSENTIAL = ("setup", "steps")
"""Names whose failure ends all measuring."""


def new_run(stage: str) -> Run:
    """Return the record of a run that starts now."""
    now = time.gmtime()
    return Run(
        id=f"{time.strftime('%Y%m%dT%H%M%SZ', now)}-{stage}-{uuid.uuid4().hex[:8]}",
        stage=stage,
        status="running",
        started_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", now),
        wall_s=0.0,
        lightning_perf=__version__,
    )


class ProbeSet:
    """Opens, calls, records and closes the probes of one run. A probe that raises is switched off, the others go on.

    Attributes:
        context: The run; None before it.
        loop: Times all steps; None before the run, and after measuring has failed.
        failures: Probes and reports that raised and are off for the rest of the run, by name.
        watches_backward: Whether a probe handles one of ``BACKWARD_EVENTS``.
    """

    def __init__(self) -> None:
        self.context: RunContext | None = None
        self.loop: LoopTimer | None = None
        self.failures: dict[str, ProbeFailure] = {}
        self.watches_backward = False
        self._probes: dict[str, Probe] = {}  # including those that are off, which report what they had measured
        self._observers: dict[str, Probe] = {}
        self._handlers: dict[str, dict[str, Callable[..., None]]] = {}  # by event and probe
        self._begun: dict[str, None] = {}  # ordered names of the probes that observe the step under way
        self._is_step_requested = False
        self._known_causes: set[str] = set()  # of failures, to warn once about each
        self._span_cost_ns = 0.0
        self._run: Run | None = None

    def begin(self, context: RunContext) -> None:
        """Begin a run, in the Trainer's ``setup``."""
        self._span_cost_ns = span_cost_ns(context.now_ns)
        self._run = new_run(context.stage)
        self.context, self.loop = context, context.loop

    def open_all(self) -> None:
        """Open the probes of the stage; stop if an essential one fails."""
        context = self.context
        assert context is not None
        for kind in all_probes():
            if self.loop is not None and context.stage in kind.stages:
                probe = self.call(kind.name, kind.open, context)
                if probe is not None:
                    self.add(probe)
                    self.call(kind.name, probe.start)
                elif kind.name in self.failures and kind.field:
                    context.missing.setdefault(kind.field, _FAILED)

    def add(self, probe: Probe) -> None:
        """Add a probe. Probes are called in the order in which they were added."""
        kind, name = type(probe), probe.name
        self._probes[name] = probe
        if _overrides(kind, "next_step"):
            self._observers[name] = probe
        for event in _EVENTS:
            if _overrides(kind, event):
                self._handlers[event] = {**self._handlers.get(event, {}), name: getattr(probe, event)}
        self._note_backward()

    def find(self, kind: type[AnyProbe]) -> AnyProbe | None:
        """Return the probe of a class, even if it is off; None if it was not opened."""
        probe = self._probes.get(kind.name)
        return probe if isinstance(probe, kind) else None

    def close(self) -> None:
        """Restore everything, last first. Can be called again, and then completes a call that an interrupt ended."""
        with ExitStack() as stack:  # calls all of them, whatever they raise
            for name, probe in self._probes.items():
                stack.callback(self.call, f"{name} teardown", probe.close)

    def _give_up(self) -> None:
        """Restore everything after measuring failed; keep what was measured."""
        self.loop = None
        for name in self._probes:
            self._stop_calling(name)
        self.close()
        if self.context is not None:
            self.context.missing["steady"] = _FAILED
            self.call("teardown", self.context.loop.freeze)

    def step_begins(self, loop: LoopTimer, batch: Any) -> None:
        """Start a step that probes observe."""
        loop.is_instrumented_step = True
        if loop.main.is_in_batch:  # the previous batch-end hook was not called
            self.call("steps", loop.main.batch_ends)
        self.call("steps", loop.batch_begins, batch)
        for name in tuple(self._observers):
            probe = self._observers.get(name)  # a failure of another probe may have removed it
            if probe is not None and probe.next_step <= loop.main.n_steps:
                self._begun[name] = None
                self.call(name, probe.step_begins, batch)

    def step_ends(self, loop: LoopTimer, batch: Any) -> None:
        """End such a step and schedule the next one."""
        loop.is_instrumented_step = False
        for name in self._begun:
            probe = self._observers.get(name)
            if probe is not None:
                self.call(name, probe.step_ends)
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

    def notify(self, event: str, *args: Any) -> None:
        """Call the probes that handle an event of `Probe`."""
        for name, handler in self._handlers.get(event, {}).items():
            self.call(name, handler, *args)

    def leave_backward(self, probe: Probe) -> None:
        """Stop notifying a probe of backward passes; once no probe needs these hooks, do not time them either."""
        for event in BACKWARD_EVENTS:
            self._forget_handler(event, probe.name)
        self._note_backward()
        if self.loop is not None and not self.watches_backward:
            self.call("steps", self.loop.leave_own_hooks_untimed, [f"on_{event}" for event in BACKWARD_EVENTS])

    def _note_backward(self) -> None:
        self.watches_backward = any(self._handlers.get(event) for event in BACKWARD_EVENTS)

    def _forget_handler(self, event: str, name: str) -> None:
        # A new dict: the old one may be iterated over.
        self._handlers[event] = {one: call for one, call in self._handlers.get(event, {}).items() if one != name}

    def _stop_calling(self, name: str) -> None:
        """Stop calling a probe's handlers of steps and events."""
        self._observers.pop(name, None)
        for event in _EVENTS:
            self._forget_handler(event, name)
        self._note_backward()

    def call(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function of a probe or report; return None if that is off, or if it raises and is switched off."""
        return None if name in self.failures else self.call_even_if_off(name, function, *args, **kwargs)

    def call_even_if_off(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function of a probe that may be off, to get what it measured before; None if it raises."""
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - reported by switch_off
            self.switch_off(name, error)
            return None

    def switch_off(self, name: str, error: Exception, warning: str = "") -> None:
        """Record that a probe or report failed, and do not call it again; the first failure of each cause is logged.

        ``warning`` replaces the usual log line.
        """
        text = error_text(error)
        if name in self.failures:
            return
        step = self.context.loop.main.n_steps if self.context is not None else 0
        failure = ProbeFailure(probe=name, error=text, step=step)
        cause = _cause_of(error)
        is_new = cause not in self._known_causes
        self._known_causes.add(cause)
        self.failures[name] = failure
        usual = (
            f"PerfDoctor switched its probe {name!r} off for this run ({failure.error}); the training is not affected."
        )
        level = logging.WARNING if is_new else logging.DEBUG
        _log.log(level, "%s", warning or usual, exc_info=_log.isEnabledFor(logging.DEBUG))
        if name in _ESSENTIAL:
            self._give_up()
        elif name in self._probes:
            self._stop_calling(name)
            self.call(f"{name} teardown", self._probes[name].abandon)

    def session(self, status: Status = "running", error: BaseException | None = None) -> Session:
        """Return the session so far; ``error`` is what ended the run. A probe that raises costs its own part only."""
        context, run = self.context, self._run
        assert context is not None
        assert run is not None
        missing = {"steady": "the session could not be put together; see probes_off"}
        bare = Session(run=run, machine=context.machine, missing=missing)
        session = self.call_even_if_off("session", self._with_parts, bare) or bare
        wall_s, cause = context.wall_s(), None if error is None else type(error).__name__  # after everything above
        return msgspec.structs.replace(
            session,
            run=msgspec.structs.replace(session.run, status=status, wall_s=wall_s, error=cause),
            telemetry=self.call_even_if_off("cost", with_cost, session, context.rates, wall_s),
            overhead=self.call_even_if_off("overhead", self.overhead, wall_s),
            missing={**session.missing, **context.missing},
        )

    def _with_parts(self, session: Session) -> Session:
        """Return the session with the parts of all probes, and why figures are missing."""
        missing: dict[str, str] = {}
        for name, probe in tuple(self._probes.items()):
            session = self.call_even_if_off(name, _with_part, session, probe, missing) or session
            if probe.error is not None:
                self.switch_off(name, probe.error)
        for kind in all_probes():
            if kind.reason and getattr(session, kind.field) is None:
                missing.setdefault(kind.field, kind.reason)
        return msgspec.structs.replace(session, missing=missing)

    def overhead(self, wall_s: float) -> Overhead:
        """Return what measuring costs."""
        assert self.context is not None
        loop = self.context.loop
        stepping_ns, reporting_ns = loop.own_ns()
        reporting_ns += sum(probe.cost_ns for probe in self._probes.values())
        n_steps = loop.main.n_steps
        spans_ns = loop.n_spans() * self._span_cost_ns
        # The median, to ignore steps in which another program ran during a hook, and the few that are observed.
        per_step_ns = loop.main.own_median_ns() + spans_ns / max(1, n_steps + loop.validation.n_steps)
        per_step_ns += sum(probe.step_cost_ns for probe in self._probes.values()) / max(1, n_steps)
        return Overhead(
            per_step_us=per_step_ns / 1e3,
            reporting_s=reporting_ns / 1e9,
            share=(stepping_ns + reporting_ns + spans_ns) / 1e9 / wall_s if wall_s > 0 else 0.0,
            budget_us=BUDGET_US,
            backed_off=tuple(loop.backed_off),
        )

    def keep_to_budget(self) -> None:
        """Reduce instrumentation when its overhead exceeds the budget."""
        if self.context is None:
            return
        loop = self.context.loop
        step_ns = loop.main.recent_median_ns()
        per_step_us = self.overhead(loop.wall_ns() / 1e9).per_step_us
        is_expensive = step_ns is not None and per_step_us > max(BUDGET_US, _EXPENSIVE_SHARE * step_ns / 1e3)
        if is_expensive and not loop.backed_off:
            loop.back_off()


_EVENTS = ("loops_ready", "first_batch", *BACKWARD_EVENTS, "after_step", "validation_begins", "evaluation_begins",
           "epoch_ends", "before_report", "training_ends", "run_ends")  # fmt: skip


def _overrides(kind: type[Probe], name: str) -> bool:
    return getattr(kind, name) is not getattr(Probe, name)


def _with_part(session: Session, probe: Probe, missing: dict[str, str]) -> Session:
    session = msgspec.structs.replace(session, **probe.part(session))
    missing.update(probe.reasons())
    return session


def _cause_of(error: Exception) -> str:
    """Return what made something fail: the same for every file that the same folder or disk refuses."""
    cause = error if error.__cause__ is None else error.__cause__
    number = cause.errno if isinstance(cause, OSError) else None
    return os.strerror(number) if number is not None else type_and_message(cause)
