"""PD317: the device is busy, and no other rule found lost time."""

import re

from lightning_perf.records import Evidence, Finding, MatrixShape, Session
from lightning_perf.rules.findings import compile_prescription, fact, make_finding
from lightning_perf.rules.kernel_signals import kind_s, work_s, work_share
from lightning_perf.rules.rule import rule
from lightning_perf.rules.thresholds import BUSY_MIN_SHARE
from lightning_perf.rules.trace_reading import Reading, device_reading_of
from lightning_perf.rules.wording import percent
from lightning_perf.stats.datasheets import datasheet_of
from lightning_perf.traces.kernels import MATRIX_KINDS


@rule("PD317", "compute-bound", only_unexplained=True)
def check(session: Session) -> Finding | None:
    reading, device = device_reading_of(session)
    trace = reading.trace
    # A trace without steps includes the start of the program: use the span of device events instead.
    busy = device.busy_s / (trace.span_s if trace.steps else max(device.span_s, device.busy_s, 1e-9))
    busy = min(busy, 1.0)
    if busy < BUSY_MIN_SHARE or work_s(trace) <= 0:
        return None
    matrix = work_share(trace, *MATRIX_KINDS)
    return make_finding(
        severity="info",
        summary=(
            f"The device is busy {percent(busy)} of the time; {percent(matrix)} of kernel time is matrix "
            "multiplication and convolution. Only less or faster arithmetic would reduce step time."
        ),
        evidence=(
            fact("device busy", busy, "fraction", BUSY_MIN_SHARE, len(trace.steps) or None),
            fact("matrix kernels ÷ kernel time", matrix, "fraction", n=trace.n_kernels),
            *_speed(reading),
            *_utilization(session),
        ),
        prescriptions=compile_prescription(session, ": it may fuse other operators"),
        confidence="high" if trace.steps else "medium",
    )


def _speed(reading: Reading) -> tuple[Evidence, ...]:
    """Return the FLOP/s of matrix multiplications with known shapes, and their fraction of the datasheet peak."""
    trace = reading.trace
    known = [shape for shape in trace.matrix_shapes if shape.m and shape.n and shape.k and shape.device_s > 0]
    seconds = sum(shape.device_s for shape in known)
    if seconds <= 0 or trace.kernels is None:
        return ()
    speed = sum(_operations(shape) for shape in known) / seconds
    facts = (
        fact("matrix multiplication rate", speed, "FLOP/s", n=sum(s.calls for s in known)),
        reading.evidence("matrix kernels", kind_s(trace, *MATRIX_KINDS)),
    )
    precisions = trace.kernels.matrix_precisions
    chip = datasheet_of(trace.device_name or "")
    peaks = chip.matmul_flops_per_s if chip is not None else {}
    peak = peaks.get(max(precisions, key=lambda precision: precisions[precision]), 0.0) if precisions else 0.0
    if chip is None or not peak:
        return facts
    metric = f"matrix multiplication rate ÷ datasheet peak of the {chip.chip} ({peak / 1e12:g} TFLOP/s)"
    return (*facts, fact(metric, speed / peak, "fraction"))


def _utilization(session: Session) -> tuple[Evidence, ...]:
    """Return the FLOP/s of the whole step, and its fraction of the measured ceiling and of the datasheet peak."""
    used = session.model_profile.utilisation if session.model_profile is not None else None
    if used is None:
        return ()
    facts = [fact("FLOP rate of the model over the step", used.flops_per_s, "FLOP/s")]
    for fraction, peak, ceiling in (
        (used.measured_fraction, used.measured_flops_per_s, "measured ceiling"),
        (used.datasheet_fraction, used.datasheet_flops_per_s, "datasheet peak"),
    ):
        if fraction is not None and peak is not None:
            metric = f"FLOP rate of the model ÷ {ceiling} ({peak / 1e12:.3g} TFLOP/s, {used.precision})"
            facts.append(fact(metric, fraction, "fraction"))
    return tuple(facts)


def _operations(shape: MatrixShape) -> float:
    batch = re.match(r"\[(\d+),\d+,\d+\]", shape.shapes)
    return 2.0 * (shape.m or 0) * (shape.n or 0) * (shape.k or 0) * shape.calls * (int(batch[1]) if batch else 1)
