"""Profiler windows and trace files as rules use them, and findings whose gain follows from a trace."""

from collections.abc import Iterable
from statistics import fmean
from typing import NamedTuple

import msgspec
import numpy as np

from lightning_perf.records import (
    STEP_PHASES,
    Confidence,
    DeviceActivity,
    Distribution,
    Evidence,
    Finding,
    Method,
    PhaseTime,
    Session,
    StageTimes,
    TraceRecord,
    WhatIf,
)
from lightning_perf.traces.whatif import predict

from .findings import EvidenceLike, PrescriptionLike, fact, timed_finding
from .kernel_signals import on_path_s, path_s
from .rule import Skip, required
from .signals import CODE_PHASES, COMPUTE_PHASES, claims_within, phase_s
from .thresholds import LOW_SHARE, MIN_SPAN_S, MIN_STEPS
from .wording import duration, number_of

_OF_THE_HOST = ("loader", "allocator", "sync", "blocked", "launch", "between")
"""Causes of idle time that grow when the host is slower."""

_PHASE_OF_TRACE = {"data_loading": "data_wait", "forward": "forward", "backward": "backward", "optimizer": "optimizer"}


class Reading(NamedTuple):
    """A trace, and the span of time that its shares are applied to.

    Attributes:
        trace: Record of the profiler window or trace file.
        span: The steady steps of the session, or the time of the trace if there are too few.
        basis: Description of ``span``.
        is_timed: Whether ``span`` was timed without the profiler, whose overhead is included in the trace.
    """

    trace: TraceRecord
    span: StageTimes
    basis: str
    is_timed: bool

    @property
    def n_steps(self) -> int:
        """The number of steps in the trace, at least 1."""
        return max(1, len(self.trace.steps))

    def share(self, seconds: float) -> float:
        """Return seconds of the trace as a share of its analyzed part."""
        return seconds / self.trace.span_s

    def finding(
        self,
        *,
        summary: str,
        evidence: EvidenceLike,
        prescriptions: PrescriptionLike,
        high_s: float,
        basis: str,
        low_s: float = 0.0,
        phases: Iterable[str] = (),
        confidence: Confidence = "high",
        method: Method = "timed",
    ) -> Finding:
        """Return a finding whose severity and gain follow from seconds of a trace.

        ``low_s`` and ``high_s`` are the seconds of the trace saved at least and at most, without time that overlaps
        with other work; the span that they are applied to is appended to ``basis``. ``phases`` is as for ``claims``.
        The confidence is lower for a trace without steps. For the other arguments see ``timed_finding``.
        """
        if confidence == "high" and not self.trace.steps:
            confidence = "medium"
        return timed_finding(
            self.span,
            summary=summary,
            evidence=evidence,
            prescriptions=prescriptions,
            claims=self.claims(high_s, phases),
            low_s=low_s * self._scale,
            basis=f"{basis} ({self.basis})",
            confidence=confidence,
            method=method,
        )

    def claims(self, seconds: float, phases: Iterable[str] = ()) -> dict[str, float]:
        """Return seconds of the trace as seconds of the span, by phase.

        Args:
            seconds: Seconds of the trace.
            phases: Phases in which the time is spent; the result is limited to their time. By default, all phases of a
                step except data wait, or the whole step if these are shorter: device time shows in whichever phase the
                host next waits for the device.
        """
        span, wanted = self.span, tuple(phases) or tuple(name for name in STEP_PHASES if name != "data_wait")
        seconds *= self._scale
        if not tuple(phases) and seconds > phase_s(span, *wanted):
            wanted = STEP_PHASES
        return claims_within(span, seconds, wanted)

    def evidence(self, metric: str, seconds: float, threshold: float | None = None) -> Evidence:
        """Return seconds of the trace as evidence, as a share of its analyzed part."""
        return fact(metric, self.share(seconds), "fraction", threshold, len(self.trace.steps) or None)

    def path_s(self, *causes: str) -> float:
        """Return the seconds of these causes on the critical path."""
        return path_s(self.trace, *causes)

    def without(self, cause: str) -> tuple[WhatIf, float, float] | None:
        """Return the prediction without a cause, and the least and most seconds saved; None if there is none."""
        found = next((each for each in self.trace.what_if if each.cause == cause), None)
        if found is None:
            return None
        n = self.n_steps
        return found, n * max(0.0, found.step_s - found.high_s), n * max(0.0, found.step_s - found.low_s)

    def saved_s(self, cause: str, most_s: float) -> tuple[float, float]:
        """Return the least and most seconds of the trace saved without a cause, at most ``most_s``."""
        gone = self.without(cause)
        return (gone[1], min(most_s, gone[2])) if gone else (0.0, most_s)

    def device_savings(self, low_s: float, high_s: float) -> tuple[float, float]:
        """Return the seconds of the trace that faster kernels save on the critical path: at least and at most.

        The least is limited by the time that the host needs. The arguments are seconds of device work.
        """
        needed_s = sum(step.host_needed_s or 0.0 for step in self.trace.windows)
        phases = self.span.phases
        if self.is_timed and all(phases[name].p10_s is not None for name in CODE_PHASES if name in phases):
            # Without the profiler, and in the fastest steps without a wait for the device, which is in these phases.
            fastest_s = sum(
                (phases[name].p10_s or 0.0) if name in COMPUTE_PHASES else phases[name].total_s / self.span.n_span_steps
                for name in STEP_PHASES
                if name in phases
            )
            needed_s = min(needed_s, self.n_steps * fastest_s)
        slack_s = max(0.0, self.trace.span_s - needed_s)
        return min(on_path_s(self.trace, low_s), slack_s), on_path_s(self.trace, high_s)

    def is_noticeable(self, high_s: float) -> bool:
        """Return whether saving these seconds of the trace would be noticeable."""
        return self.share(high_s) >= LOW_SHARE

    @property
    def code_limit_s(self) -> float:
        """Upper limit of the seconds of the trace in the model's code, without profiler overhead."""
        if not self.is_timed:
            return self.trace.span_s
        steps_s = phase_s(self.span, *STEP_PHASES)
        return self.trace.span_s * phase_s(self.span, *CODE_PHASES) / steps_s if steps_s > 0 else 0.0

    @property
    def idle_limit_s(self) -> float:
        """Seconds of the trace in which the device is idle."""
        busy_s = sum(step.device_busy_s or 0.0 for step in self.trace.windows)
        return max(0.0, self.trace.span_s - busy_s)

    def per_step(self, n: int, what: str = "", plural: str = "") -> str:
        """Return a count per step: ``"12 copies per step"``; for the whole trace if it has no steps."""
        value = n / self.n_steps if self.trace.steps else n
        text = f"{value:.0f}" if value >= 10 or not self.trace.steps else f"{value:.2g}"
        named = f" {what if text == '1' else plural or what + 's'}" if what else ""
        return f"{text}{named} {'per step' if self.trace.steps else 'in the trace'}"

    def step_words(self, seconds: float) -> str:
        """Return seconds per step: ``"12 ms of a 60 ms step"``; for the whole trace if it has no steps."""
        if not self.trace.steps:
            return f"{duration(seconds)} of {duration(self.trace.span_s)}"
        return f"{duration(seconds / self.n_steps)} of a {duration(self.trace.span_s / self.n_steps)} step"

    @property
    def _scale(self) -> float:
        return phase_s(self.span, *STEP_PHASES) / self.trace.span_s


def reading_of(session: Session) -> Reading:
    """Return the last recorded window; raise Skip if there is none."""
    if not session.windows:
        raise Skip("no profiler window was opened")
    for window in reversed(session.windows):
        trace = window.trace
        if window.status == "recorded" and trace is not None and trace.span_s >= MIN_SPAN_S:
            return _reading(session, trace)
    raise Skip("no profiler window was recorded: " + session.windows[-1].reason)


def device_reading_of(session: Session) -> tuple[Reading, DeviceActivity]:
    """Return the last recorded window and its device activity; raise Skip if there is no window or no device event."""
    reading = reading_of(session)
    reason = reading.trace.missing.get("device", "the profiler window has no device events")
    return reading, required(reading.trace.device, reason)


def complete_reading_of(session: Session) -> Reading:
    """Return the last recorded window; raise Skip if there is none, or if it lacks the events of its device."""
    reading = reading_of(session)
    if lacks_device_events(reading.trace):
        raise Skip(reading.trace.missing.get("device", "the trace has no device events"))
    return reading


def shows_device(session: Session) -> bool:
    """Return whether a profiler window shows what the device did."""
    return any(window.trace is not None and window.trace.device is not None for window in session.windows)


def computing_share(session: Session) -> float:
    """Return the share of the time in which kernels limit the step; 0 without a window that shows a device's work."""
    try:
        reading, _ = device_reading_of(session)
        return reading.share(reading.path_s("compute"))
    except Skip:
        return 0.0


def lacks_device_events(trace: TraceRecord) -> bool:
    """Return whether the trace has a device but no device events."""
    return trace.device is None and (trace.device_name is not None or trace.allocator is not None)


def _reading(session: Session, trace: TraceRecord) -> Reading:
    steady = session.steady
    n_steps = len(trace.steps)
    window = number_of(n_steps, "profiled step") if n_steps else "the whole trace, without steps"
    if steady is None or steady.n_steps < MIN_STEPS or steady.span_s < MIN_SPAN_S:
        return Reading(trace, _span_of(trace), window, False)
    timed = steady.device.step_s if steady.device is not None else steady.step_s
    trace = _at_timed_speed(trace, timed.mean)
    return Reading(trace, steady, f"shares of {window}, applied to {steady.n_steps} timed steps", True)


def _at_timed_speed(trace: TraceRecord, step_s: float) -> TraceRecord:
    """Return the trace with as much idle time of the device as in timed steps: the profiler slows only the host.

    Kernels that were hidden by the host's additional time are on the critical path again.
    """
    path, device, kernels = trace.critical_path, trace.device, trace.kernels
    excess_s = trace.span_s - len(trace.steps) * step_s
    if path is None or device is None or not trace.steps or excess_s <= 0:
        return trace
    idle_s = sum(path.causes.get(cause, 0.0) for cause in _OF_THE_HOST)
    left = max(0.0, 1 - excess_s / idle_s) if idle_s > 0 else 1.0
    causes = {cause: s * (left if cause in _OF_THE_HOST else 1.0) for cause, s in path.causes.items()}
    # Hidden copies stay hidden: which kind they are is not known.
    computing = min(1.0, device.compute_s / device.busy_s) if device.busy_s > 0 else 0.0
    shown_s = computing * (1 - left) * path.causes.get("hidden", 0.0)
    causes["hidden"] = path.causes.get("hidden", 0.0) - shown_s
    causes["compute"] = causes.get("compute", 0.0) + shown_s
    all_s = sum(time.total_s for time in kernels.kinds.values()) if kernels is not None else 0.0
    shown = {kind: shown_s * time.total_s / all_s for kind, time in kernels.kinds.items()} if kernels and all_s else {}
    kinds = {kind: path.kinds.get(kind, 0.0) + shown.get(kind, 0.0) for kind in {*path.kinds, *shown}}
    span_s = sum(causes.values())
    if span_s <= 0:
        return trace
    path = msgspec.structs.replace(path, causes=causes, kinds=kinds, long_gaps_s=left * path.long_gaps_s)
    corrected = msgspec.structs.replace(trace, critical_path=path, span_s=span_s)
    return msgspec.structs.replace(corrected, what_if=predict(corrected))


def _span_of(trace: TraceRecord) -> StageTimes:
    """Return the span of a trace alone, which includes profiler overhead."""
    seconds: dict[str, float] = {}
    for phase in trace.phases:
        name = _PHASE_OF_TRACE.get(phase.name, "other")
        seconds[name] = seconds.get(name, 0.0) + max(0.0, phase.host_s)
    total_s = sum(seconds.values())
    if total_s <= 0:
        seconds, total_s = {"other": 1.0}, 1.0
    durations = [step.duration_s for step in trace.steps] or [trace.span_s]
    p50, p95, p99 = (float(value) for value in np.percentile(durations, [50, 95, 99]))
    return StageTimes(
        n_steps=len(durations),
        n_warmup_steps=0,
        span_s=trace.span_s,
        step_s=Distribution(p50=p50, p95=p95, p99=p99, mean=fmean(durations), std=float(np.std(durations))),
        samples_per_s=None,
        phases={
            name: PhaseTime(total_s=trace.span_s * spent / total_s, share=spent / total_s)
            for name, spent in seconds.items()
        },
    )
