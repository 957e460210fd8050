"""What rules read from a profiler window or a trace file, and findings whose gain follows from it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from statistics import fmean
from typing import NamedTuple

import numpy as np

from lightning_perf.records import (
    STEP_PHASES,
    Confidence,
    CriticalPath,
    DeviceActivity,
    Distribution,
    Evidence,
    Finding,
    Method,
    PhaseTime,
    Prescription,
    Session,
    StageTimes,
    TraceRecord,
    WhatIf,
)

from .gain import timed_finding
from .rule import Skip
from .signals import phase_s
from .thresholds import AMPERE_CAPABILITY, LOW_SHARE, MIN_SPAN_S, MIN_STEPS, TENSOR_CORE_CAPABILITY, TURING_CAPABILITY
from .wording import duration

ELEMENTWISE_KINDS = ("elementwise", "normalization", "reduction", "copy")

_PHASE_OF_TRACE = {"data_loading": "data_wait", "forward": "forward", "backward": "backward", "optimizer": "optimizer"}
_AMD_WITH_MATRIX_UNITS = re.compile(r"\bMI\d{2,3}")
_TURING_WITHOUT_TENSOR_CORES = re.compile(r"GTX 16|\bMX\d|T[45]\d\d\b")


class Reading(NamedTuple):
    """A profiler window, and the span of time that its shares are applied to.

    Attributes:
        trace: What the window, or the trace file, says.
        span: The steady steps of the session; what the trace itself lasted where there are too few of these.
        basis: Which of the two, in words.
        is_timed: Whether they are steps timed without the profiler, whose own cost is in the trace.
    """

    trace: TraceRecord
    span: StageTimes
    basis: str
    is_timed: bool

    @property
    def n_steps(self) -> int:
        """Steps in the trace, at least 1."""
        return max(1, len(self.trace.steps))

    def share(self, seconds: float) -> float:
        """Seconds of the trace as a share of what was analysed of it."""
        return seconds / self.trace.span_s


class MatrixUnits(NamedTuple):
    """Which matrix products the device does faster than plain 32-bit ones; None where that is not known."""

    bf16: bool | None
    fp16: bool | None
    tf32: bool | None


def reading_of(session: Session) -> Reading:
    """The last window that holds something.

    Raises:
        Skip: There is none.
    """
    if not session.windows:
        raise Skip("no profiler window was opened")
    for window in reversed(session.windows):
        trace = window.trace
        if window.status == "recorded" and trace is not None and trace.span_s >= MIN_SPAN_S:
            return _reading(session, trace)
    raise Skip("no profiler window holds anything: " + session.windows[-1].reason)


def device_reading_of(session: Session) -> tuple[Reading, DeviceActivity]:
    """The last window, and what it says of the device.

    Raises:
        Skip: There is no window, or no work of a device in it.
    """
    reading = reading_of(session)
    if reading.trace.device is None:
        raise Skip(reading.trace.missing.get("device", "the profiler window holds no work of a device"))
    return reading, reading.trace.device


def is_blind(trace: TraceRecord) -> bool:
    """Whether there was a device whose work the trace does not show: neither its cost nor the host's can be told."""
    return trace.device is None and (trace.device_name is not None or trace.allocator is not None)


def _reading(session: Session, trace: TraceRecord) -> Reading:
    steady = session.steady
    n_steps = len(trace.steps)
    window = (
        f"{n_steps} profiled {'step' if n_steps == 1 else 'steps'}" if n_steps else "the whole trace, without steps"
    )
    if steady is None or steady.n_steps < MIN_STEPS or steady.span_s < MIN_SPAN_S:
        return Reading(trace, _span_of(trace), window, False)
    return Reading(trace, steady, f"shares of {window}, applied to {steady.n_steps} timed steps", True)


def _span_of(trace: TraceRecord) -> StageTimes:
    """The span of a trace alone; the profiler's own cost is in it."""
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


def trace_finding(
    reading: Reading,
    *,
    summary: str,
    evidence: tuple[Evidence, ...],
    prescriptions: tuple[Prescription, ...],
    low_s: float,
    high_s: float,
    basis: str,
    phases: Iterable[str] = (),
    confidence: Confidence = "high",
    method: Method = "modeled",
) -> Finding:
    """Return a finding whose severity and gain follow from seconds of a trace.

    Args:
        reading: The trace, and the span that its shares are applied to.
        summary: Its first sentence is the headline of a verdict.
        evidence: The facts.
        prescriptions: Best first.
        low_s: Seconds of the trace that go away at least.
        high_s: Seconds that go away at most, exclusive to the cause.
        basis: What both rest on; what the shares are applied to is added.
        phases: As for ``trace_claims``.
        confidence: Of the diagnosis itself; a trace without steps lowers it.
        method: As for ``timed_finding``.
    """
    if confidence == "high" and not reading.trace.steps:
        confidence = "medium"
    return timed_finding(
        reading.span,
        summary=summary,
        evidence=evidence,
        prescriptions=prescriptions,
        claims=trace_claims(reading, high_s, phases),
        low_s=low_s * _scale(reading),
        basis=f"{basis} ({reading.basis})",
        confidence=confidence,
        method=method,
    )


def trace_claims(reading: Reading, seconds: float, phases: Iterable[str] = ()) -> dict[str, float]:
    """Return seconds of a trace as seconds of the span that its shares are applied to, by phase.

    Args:
        reading: The trace, and the span.
        seconds: Of the trace.
        phases: Where the time is spent; no more than these took is claimed. By default the parts of a step other than
            waiting for data, and where they are shorter than the claim the whole step: a device's cost shows wherever
            the host next waits for it.
    """
    span, wanted = reading.span, tuple(phases) or tuple(name for name in STEP_PHASES if name != "data_wait")
    seconds *= _scale(reading)
    if not tuple(phases) and seconds > phase_s(span, *wanted):
        wanted = STEP_PHASES
    within_s = phase_s(span, *wanted)
    part = min(1.0, seconds / within_s) if within_s > 0 else 0.0
    return {name: part * span.phases[name].total_s for name in wanted if name in span.phases}


def _scale(reading: Reading) -> float:
    return phase_s(reading.span, *STEP_PHASES) / reading.trace.span_s


def share_evidence(reading: Reading, metric: str, seconds: float, threshold: float | None = None) -> Evidence:
    """A share of the analysed part of the trace as evidence."""
    return Evidence(
        metric=metric,
        value=reading.share(seconds),
        unit="fraction",
        threshold=threshold,
        n=len(reading.trace.steps) or None,
    )


def without(reading: Reading, cause: str) -> tuple[WhatIf, float, float] | None:
    """The prediction for a cause, with the seconds of the trace that go away at least and at most; None unseen."""
    found = next((each for each in reading.trace.what_if if each.cause == cause), None)
    if found is None:
        return None
    n = reading.n_steps
    return found, n * max(0.0, found.step_s - found.high_s), n * max(0.0, found.step_s - found.low_s)


CODE_PHASES = ("forward", "backward")


def code_phases(reading: Reading) -> tuple[str, ...]:
    """The phases of a step that run the model's code, by the clock; a trace alone has no better clock than itself."""
    return CODE_PHASES if reading.is_timed else ()


def code_limit_s(reading: Reading) -> float:
    """Seconds of the trace that the model's code takes at most: the profiler makes operators longer than they are."""
    if not reading.is_timed:
        return reading.trace.span_s
    steps_s = phase_s(reading.span, *STEP_PHASES)
    return reading.trace.span_s * phase_s(reading.span, *CODE_PHASES) / steps_s if steps_s > 0 else 0.0


def idle_limit_s(reading: Reading) -> float:
    """Seconds of the trace that the device is idle at most: steps without the profiler have shorter gaps."""
    trace = reading.trace
    busy_s = sum(step.device_busy_s or 0.0 for step in trace.windows)
    idle_s = max(0.0, trace.span_s - busy_s)
    if not reading.is_timed or not trace.steps or reading.span.step_s.mean <= 0:
        return idle_s
    timed = max(0.0, 1.0 - busy_s / len(trace.steps) / reading.span.step_s.mean)
    return min(idle_s, timed * trace.span_s)


def path_of(trace: TraceRecord) -> CriticalPath:
    """Return what the trace's time was spent waiting for.

    Raises:
        Skip: An older version analyzed the trace.
    """
    if trace.critical_path is None:
        raise Skip("this record of a trace holds no critical path: analyze the trace again")
    return trace.critical_path


def path_s(trace: TraceRecord, *causes: str) -> float:
    """Return the seconds of these causes on the critical path; raise Skip where it is not known."""
    causes_s = path_of(trace).causes
    return sum(causes_s.get(cause, 0.0) for cause in causes)


def launching_s(trace: TraceRecord) -> float:
    """Return the seconds in which the device is idle because the host launches late and waits for nothing itself."""
    return path_s(trace, "launch", "between")


def device_savings(reading: Reading, low_s: float, high_s: float) -> tuple[float, float]:
    """Return what faster kernels save of the step, which takes the longer of host and device.

    Args:
        reading: The trace.
        low_s: Seconds of device work saved at least.
        high_s: Seconds of device work saved at most.

    Returns:
        Seconds of the trace saved at least (no more than the host leaves) and at most, on the critical path.
    """
    needed_s = sum(step.host_needed_s or 0.0 for step in reading.trace.windows)
    slack_s = max(0.0, reading.trace.span_s - needed_s)
    return min(on_path_s(reading.trace, low_s), slack_s), on_path_s(reading.trace, high_s)


def on_path_s(trace: TraceRecord, seconds: float) -> float:
    """Return the part of the kernels' seconds that the step waits for, as of all kernels."""
    computing_s = trace.device.compute_s if trace.device is not None else 0.0
    return seconds * min(1.0, path_s(trace, "compute") / computing_s) if computing_s > 0 else 0.0


def is_worth_saying(reading: Reading, high_s: float) -> bool:
    """Whether these seconds of the trace, if they went away, would show in the step."""
    return reading.share(high_s) >= LOW_SHARE


def kind_s(trace: TraceRecord, *kinds: str) -> float:
    """Seconds in kernels of these kinds."""
    if trace.kernels is None:
        return 0.0
    if trace.kernels.kinds:
        return sum(time.total_s for kind, time in trace.kernels.kinds.items() if kind in kinds)
    return sum(kernel.total_s for kernel in trace.kernels.top if kernel.kind in kinds)


def work_s(trace: TraceRecord) -> float:
    """Seconds in all kernels but collectives."""
    if trace.kernels is None:
        return 0.0
    kinds = trace.kernels.kinds or {kernel.kind for kernel in trace.kernels.top}
    return kind_s(trace, *(kind for kind in kinds if kind != "communication"))


def work_share(trace: TraceRecord, *kinds: str) -> float:
    """The share of these kinds in the time of all kernels but collectives; 0 without kernels."""
    all_s = work_s(trace)
    return kind_s(trace, *kinds) / all_s if all_s > 0 else 0.0


def matrix_units(session: Session, trace: TraceRecord | None) -> MatrixUnits:
    """What the device's matrix units can multiply: by the session's machine, else by what the trace says of it.

    Sources: NVIDIA's compute capabilities (Tensor Cores from 7.0, TF32 and bf16 from 8.0; the GTX 16 series is 7.5
    without them) and AMD's CDNA line (Instinct MI100 and newer).
    """
    devices = session.machine.devices
    if devices:
        capabilities = [_capability(device.capability) for device in devices if device.kind == "cuda"]
        return MatrixUnits(
            _all(device.has_fast_bf16 for device in devices),
            _all(device.has_fast_fp16 for device in devices),
            _all(
                None if capability is None else capability >= AMPERE_CAPABILITY for capability in capabilities or [None]
            ),
        )
    device = trace.device if trace is not None else None
    name = (trace.device_name if trace is not None else None) or ""
    if device is not None and device.kind == "rocm":
        has_units = True if _AMD_WITH_MATRIX_UNITS.search(name) else None
        return MatrixUnits(has_units, has_units, None)
    capability = _capability(device.capability if device is not None else None)
    if capability is None:
        return MatrixUnits(None, None, None)
    has_tensor_cores = capability >= TENSOR_CORE_CAPABILITY and not (
        capability == TURING_CAPABILITY and _TURING_WITHOUT_TENSOR_CORES.search(name)
    )
    return MatrixUnits(capability >= AMPERE_CAPABILITY, has_tensor_cores, capability >= AMPERE_CAPABILITY)


def _capability(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None


def _all(answers: Iterable[bool | None]) -> bool | None:
    listed = list(answers)
    return None if not listed or any(answer is None for answer in listed) else all(listed)


def compile_prescription(what: str) -> Prescription:
    """``torch.compile``, which fuses small operators and, with CUDA graphs, launches them together."""
    return Prescription(
        treatment="compile",
        summary=f"torch.compile the model{what}",
        safety="numerics",
        effort="minutes",
        code='model = torch.compile(model, mode="reduce-overhead")  # before trainer.fit(model)',
        value="reduce-overhead",
    )


def per_step(reading: Reading, n: int, what: str = "", plural: str = "") -> str:
    """Return a count per step: ``"12 copies per step"``; in the trace if it has no steps."""
    value = n / reading.n_steps if reading.trace.steps else n
    text = f"{value:.0f}" if value >= 10 or not reading.trace.steps else f"{value:.2g}"
    named = f" {what if text == '1' else plural or what + 's'}" if what else ""
    return f"{text}{named} {'per step' if reading.trace.steps else 'in the trace'}"


def step_words(reading: Reading, seconds: float) -> str:
    """Seconds of the trace for one step: ``"12 ms of a 60 ms step"``; of the trace where it has no steps."""
    if not reading.trace.steps:
        return f"{duration(seconds)} of {duration(reading.trace.span_s)}"
    return f"{duration(seconds / reading.n_steps)} of a {duration(reading.trace.span_s / reading.n_steps)} step"
