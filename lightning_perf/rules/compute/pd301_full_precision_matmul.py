"""PD301: matrix products in full precision on hardware that has faster ones.

Longer than other rules: a window, counted arithmetic and settings alone are three ways to its finding, and from
the first two is taken what attention may lose.
"""

from __future__ import annotations

from typing import NamedTuple

from lightning_perf.records import Evidence, Finding, ModelProfile, Prescription, Session, StageTimes
from lightning_perf.rules.gain import reaching, timed_finding
from lightning_perf.rules.rule import Rule, Skip
from lightning_perf.rules.signals import FULL_PRECISION, computing_s, cores_per_rank, is_cpu_run, steady_of
from lightning_perf.rules.trace_signals import (
    HALF_PRECISIONS,
    Reading,
    code_phases,
    device_savings,
    is_blind,
    is_worth_saying,
    matrix_units,
    reading_of,
    share_evidence,
    trace_finding,
    work_share,
)
from lightning_perf.rules.wording import percent
from lightning_perf.traces.kernels import MATRIX_KINDS

CODE = "PD301"
NAME = "full-precision-matmul"
CATEGORY = "compute"

# Below this share of device time matrix products do not decide the step.
MIN_MATRIX_SHARE = 0.40
# torch-tb-profiler advises mixed precision where Tensor Cores are hardly used.
MAX_TENSOR_CORE_FRACTION = 0.05
# Without a profiler window only a model that is almost nothing but matrix products, in a step that is
# mostly forward and backward, makes it likely.
MIN_COMPUTE_SHARE = 0.60
# What a few hundred steps can tell from noise.
MIN_SAVED_SHARE = 0.02
MIN_MATMUL_PARAMETER_FRACTION = 0.90
# What low precision does to matrix kernels: from 1.5x (the lower end that the sources give) to 8x (half of the 16x
# between an A100's datasheet rates of 312 bf16 and 19.5 fp32 TFLOP/s; large products reach about that).
LOW_SPEED_UP = 1.5
HIGH_SPEED_UP = 8.0
# Where the device itself was measured, its own ratio takes their place: at most the ratio of its ceilings; at least
# half of it, for products smaller than those that reach a ceiling.
CEILING_LOW_PART = 0.5
# Numbers are read in 4 bytes and written in 2 to be cast, for each number of 4 bytes that a product moves.
CAST_BYTES_FRACTION = 1.5
# On a CPU, what lies between the products then moves half of the bytes; at most a third of its time is counted as well:
# without it, 1.6x to 2.1x was the most for four small models on a CPU with AMX, and they gained 1.8x to 2.3x.
OTHERS_PART = 1 / 3
# The backward pass of a CPU's fused attention takes up to 5 us of one thread in 16 bit for each query of each head,
# however little there is to multiply (docs/benchmarks/precision.md).
ATTENTION_BACKWARD = "aten::_scaled_dot_product_flash_attention_for_cpu_backward"
ATTENTION_QUERY_S = 5e-6

MATRIX_OPERATORS = (
    "aten::mm",
    "aten::addmm",
    "aten::bmm",
    "aten::baddbmm",
    "aten::mkldnn_convolution",
    "aten::convolution_backward",  # its products are in its own time: nothing is called below it
)

DOCS = """\
## What it measures
In a profiler window or trace, the share of kernels' time in matrix products and convolutions, and how much of it runs
on matrix units (Tensor Cores); on a CPU the share of the operators' time. Without a window, on a CPU the operators of
the one step whose arithmetic was counted; and where there is none, only whether the model, the hardware and the
Trainer's precision make it likely. How much faster 16-bit products are is taken from the device's measured ceilings
where there are any.

## Why it costs
Matrix units multiply 16-bit numbers many times faster than 32-bit ones, and 16-bit tensors need half of the memory
traffic.

## Example
```python
trainer = Trainer(precision="32-true")  # on a device with Tensor Cores, or a CPU with AMX
```

## Prescription
`precision="bf16-mixed"`, or `"16-mixed"` where the device has no fast bf16. Rounding changes: watch the loss.

## When it is wrong
Small products are bound by memory or by launching, and gain little. Some losses need float32: keep them out of
autocast. On a CPU the backward pass of fused attention over short sequences takes many times as long in 16 bit: what
may be lost there is taken from the gain, and where nothing is left for certain, nothing is said.

## Sources
The profiling lecture (mixed precision 1.5-2x, 2-3x on Tensor Cores); torch-tb-profiler's Tensor Core advice; NVIDIA's
datasheets; 2.3x measured for a stack of matrix products on a CPU with AMX; `docs/benchmarks/precision.md`.
"""


def check(session: Session) -> Finding | None:
    """Reads a profiler window where there is one, else the settings."""
    precision = session.settings.trainer.precision
    if precision is not None and precision not in FULL_PRECISION:
        return None
    reading = _window_of(session)
    if reading is not None:
        return _on_device(session, reading) if reading.trace.device is not None else _on_cpu(session, reading)
    steady = steady_of(session)
    if precision is None:
        raise Skip("the Trainer's precision is not known")
    prescription = _prescription(*_of_machine(session))
    speed_up = _speed_up(session, prescription)
    if prescription is None or speed_up.is_none:
        return None
    counted = _counted(session)
    if counted is not None:
        return _on_counted(session, steady, counted, prescription, speed_up)
    model = session.settings.model
    if model is None or model.matmul_parameter_fraction is None:
        raise Skip("no profiler window, and what the model consists of is not known")
    compute_s = computing_s(session, steady, "forward", "backward")
    if compute_s < MIN_COMPUTE_SHARE * steady.span_s:
        return None
    if model.matmul_parameter_fraction < MIN_MATMUL_PARAMETER_FRACTION:
        raise Skip("no profiler window, and the model is not made of matrix products alone: a window would tell")
    return Finding(
        code=CODE,
        name=NAME,
        category=CATEGORY,
        severity="info",
        summary=(
            f"{percent(compute_s / steady.span_s)} of the time computes in 32 bit on hardware with faster 16-bit "
            "products. A lower precision likely helps; a trial will tell."
        ),
        evidence=(
            Evidence(metric="precision", value=precision),
            Evidence(
                metric="share of parameters in matrix products",
                value=model.matmul_parameter_fraction,
                unit="fraction",
                threshold=MIN_MATMUL_PARAMETER_FRACTION,
            ),
            Evidence(
                metric="share of the time in forward and backward",
                value=compute_s / steady.span_s,
                unit="fraction",
                threshold=MIN_COMPUTE_SHARE,
                n=steady.n_steps,
            ),
        ),
        prescriptions=(prescription,),
        confidence="low",
    )


def _window_of(session: Session) -> Reading | None:
    try:
        reading = reading_of(session)
    except Skip:
        return None
    shows_work = reading.trace.device is not None or (reading.trace.operators and not is_blind(reading.trace))
    return reading if shows_work else None


def _on_device(session: Session, reading: Reading) -> Finding | None:
    """Reads the precision of matrix kernels from their names."""
    kernels = reading.trace.kernels
    share = work_share(reading.trace, *MATRIX_KINDS)
    if kernels is None or share < MIN_MATRIX_SHARE:
        return None
    fraction = kernels.matrix_tensor_core_fraction
    half_s = sum(kernels.matrix_precisions.get(precision, 0.0) for precision in HALF_PRECISIONS)
    if (fraction or 0.0) > MAX_TENSOR_CORE_FRACTION or half_s > MAX_TENSOR_CORE_FRACTION * kernels.matrix_s:
        return None
    if fraction is None and session.settings.trainer.precision is None:
        raise Skip("the names of the matrix kernels do not tell their precision")
    units = matrix_units(session, reading.trace)
    prescription = _prescription(units.bf16, units.fp16)
    if prescription is None:
        return None
    speed_up = _speed_up(session, prescription)
    if speed_up.is_none:
        return None
    full_s = kernels.matrix_s * (1 - (fraction or 0.0))
    low_s, high_s = device_savings(reading, full_s * (1 - 1 / speed_up.low), full_s * (1 - 1 / speed_up.high))
    if not is_worth_saying(reading, high_s):
        return None
    evidence = (
        Evidence(
            metric="share of matrix products in the kernels' time",
            value=share,
            unit="fraction",
            threshold=MIN_MATRIX_SHARE,
            n=reading.trace.n_kernels,
        ),
        *(
            (
                Evidence(
                    metric="of these, on matrix units",
                    value=fraction,
                    unit="fraction",
                    threshold=MAX_TENSOR_CORE_FRACTION,
                    n=reading.trace.n_kernels,
                ),
            )
            if fraction is not None
            else ()
        ),
    )
    return _measured(session, reading, share, full_s, evidence, prescription, low_s, high_s, speed_up)


def _on_cpu(session: Session, reading: Reading) -> Finding | None:
    """Reads the operators: which of them run in 16 bit is not in their names, but in the Trainer's precision."""
    trace = reading.trace
    total_s = sum(operator.host_self_s for operator in trace.operators)
    full_s = sum(operator.host_self_s for operator in trace.operators if operator.name in MATRIX_OPERATORS)
    if total_s <= 0 or full_s < MIN_MATRIX_SHARE * total_s:
        return None
    if session.settings.trainer.precision is None:
        raise Skip("the trace does not tell in which precision the CPU computes")
    prescription = _prescription(*_of_machine(session))
    speed_up = _speed_up(session, prescription)
    if prescription is None or speed_up.is_none:
        return None
    evidence = (
        Evidence(
            metric="share of matrix products in the operators' time",
            value=full_s / total_s,
            unit="fraction",
            threshold=MIN_MATRIX_SHARE,
            n=len(trace.steps) or None,
        ),
    )
    low_s, high_s = full_s * (1 - 1 / speed_up.low), full_s * (1 - 1 / speed_up.high)
    counted = _counted(session)
    if counted is not None:
        low_s = _after_attention(low_s - reading.n_steps * counted.cast_s, reading.n_steps * counted.lost_s)
    elif any(operator.name == ATTENTION_BACKWARD for operator in trace.operators):
        raise Skip("what fused attention's backward pass takes in 16 bit depends on its shapes, which are not known")
    finding = _measured(session, reading, full_s / total_s, full_s, evidence, prescription, low_s, high_s, speed_up)
    basis = f"{speed_up.basis} ({reading.basis})"
    return _with_others(finding, reading.span, full_s / total_s, speed_up, basis)


class _SpeedUp(NamedTuple):
    """What a lower precision does to matrix products here.

    Attributes:
        low: Times faster at least.
        high: At most.
        basis: What both rest on.
        is_none: Whether it was measured to gain next to nothing.
    """

    low: float
    high: float
    basis: str
    is_none: bool = False


class _Counted(NamedTuple):
    """Matrix products in 32 bit, counted and timed in one step on a CPU.

    Attributes:
        full_s: Their seconds in the step.
        all_s: Seconds of all operators.
        cast_s: What casting all they move takes at most.
        lost_s: What the backward pass of fused attention takes longer in 16 bit at most.
    """

    full_s: float
    all_s: float
    cast_s: float
    lost_s: float


def _speed_up(session: Session, prescription: Prescription | None) -> _SpeedUp:
    """From the device's measured ceilings, else from what sources give."""
    profile = session.model_profile
    ceilings = profile.ceilings if profile is not None else None
    basis = f"matrix products {LOW_SPEED_UP:g}x to {HIGH_SPEED_UP:g}x faster"
    if ceilings is None or prescription is None:
        return _SpeedUp(LOW_SPEED_UP, HIGH_SPEED_UP, basis)
    speeds = ceilings.matmul_flops_per_s
    now = speeds.get(profile.precision if profile is not None and profile.precision == "tf32" else "fp32")
    then = speeds.get("bf16" if prescription.treatment == "precision-bf16" else "fp16")
    if not now or not then:
        return _SpeedUp(LOW_SPEED_UP, HIGH_SPEED_UP, basis)
    ratio = then / now
    low = max(1.0, CEILING_LOW_PART * ratio)
    basis = f"matrix products {low:.1f}x to {ratio:.1f}x faster, by the measured ceilings of this device"
    return _SpeedUp(low, max(1.0, ratio), basis, is_none=ratio < LOW_SPEED_UP)


def _counted(session: Session) -> _Counted | None:
    """What the step that was counted tells; None where there is none, or its operators were not timed."""
    profile: ModelProfile | None = session.model_profile
    if profile is None or not is_cpu_run(session):
        return None
    timed = [(operator, operator.total_s) for operator in profile.operators if operator.total_s is not None]
    matrix = [(operator, spent_s) for operator, spent_s in timed if operator.flops and operator.dtype == "float32"]
    rate = profile.ceilings.copy_bytes_per_s if profile.ceilings is not None else None
    if not timed:
        return None
    n_bytes = sum(operator.n_bytes for operator, _ in matrix)
    n_threads = max(1.0, min(float(session.settings.torch.n_threads or 1), cores_per_rank(session)))
    slower_s = sum(
        ATTENTION_QUERY_S * operator.n_rows / n_threads - spent_s
        for operator, spent_s in matrix
        if operator.name == ATTENTION_BACKWARD
    )
    return _Counted(
        full_s=sum(spent_s for _, spent_s in matrix),
        all_s=sum(spent_s for _, spent_s in timed),
        cast_s=CAST_BYTES_FRACTION * n_bytes / rate if rate else 0.0,
        lost_s=max(0.0, slower_s),
    )


def _after_attention(low_s: float, lost_s: float) -> float:
    """What is saved at least, less what fused attention may lose.

    Raises:
        Skip: It may lose all of it.
    """
    if lost_s > 0 and low_s <= lost_s:
        raise Skip("in 16 bit the backward pass of this CPU's fused attention may lose what the products gain")
    return low_s - lost_s


def _with_others(finding: Finding, span: StageTimes, share: float, speed_up: _SpeedUp, basis: str) -> Finding:
    """The finding, its gain reaching as far as it does where the operators between the products become faster too.

    Args:
        finding: Of the products.
        span: The span.
        share: Of the products in the operators' time.
        speed_up: Of the products.
        basis: What the gain rests on.
    """
    most_s = {}
    for name, saved_s in finding.claims.items():
        others_s = saved_s / (1 - 1 / speed_up.high) * (1 - share) / share
        most_s[name] = saved_s + OTHERS_PART * others_s
    return reaching(finding, span, most_s, f"{basis}; at best, what lies between them too")


def _on_counted(
    session: Session, steady: StageTimes, counted: _Counted, prescription: Prescription, speed_up: _SpeedUp
) -> Finding | None:
    """Reads the operators of the step that was counted; the shares are those of its operators' own time."""
    if counted.all_s <= 0 or counted.full_s < MIN_MATRIX_SHARE * counted.all_s:
        return None
    compute_s = computing_s(session, steady, "forward", "backward")
    full_s = min(counted.full_s * steady.n_steps, compute_s * counted.full_s / counted.all_s)
    high_s = full_s * (1 - 1 / speed_up.high)
    low_s = full_s * (1 - 1 / speed_up.low) - counted.cast_s * steady.n_steps
    low_s = _after_attention(low_s, counted.lost_s * steady.n_steps)
    part = high_s / compute_s if compute_s > 0 else 0.0
    if high_s < MIN_SAVED_SHARE * steady.span_s:
        return None
    share = counted.full_s / counted.all_s
    basis = f"{speed_up.basis} (operators of one step, applied to {steady.n_steps} timed steps)"
    finding = timed_finding(
        steady,
        code=CODE,
        name=NAME,
        category=CATEGORY,
        summary=(
            f"{percent(share)} of the computing is matrix products in 32 bit. The hardware has faster 16-bit ones, and "
            f"they take {percent(full_s / steady.span_s)} of the time."
        ),
        evidence=(
            Evidence(
                metric="share of matrix products in the operators' time",
                value=share,
                unit="fraction",
                threshold=MIN_MATRIX_SHARE,
                n=1,
            ),
            Evidence(metric="matrix products in 32 bit, of the time", value=full_s / steady.span_s, unit="fraction"),
            Evidence(metric="speed-up of 16-bit products, at most", value=speed_up.high, unit="ratio"),
            Evidence(metric="precision", value=session.settings.trainer.precision or ""),
        ),
        prescriptions=(prescription,),
        claims={name: part * computing_s(session, steady, name) for name in ("forward", "backward")},
        low_s=low_s,
        basis=basis,
        confidence="medium",
    )
    return _with_others(finding, steady, share, speed_up, basis)


def _measured(
    session: Session,
    reading: Reading,
    share: float,
    full_s: float,
    evidence: tuple[Evidence, ...],
    prescription: Prescription,
    low_s: float,
    high_s: float,
    speed_up: _SpeedUp,
) -> Finding:
    precision = session.settings.trainer.precision
    return trace_finding(
        reading,
        code=CODE,
        name=NAME,
        category=CATEGORY,
        summary=(
            f"{percent(share)} of the computing is matrix products in 32 bit. The hardware has faster 16-bit ones, and "
            f"they take {percent(reading.share(full_s))} of the time."
        ),
        evidence=(
            *evidence,
            share_evidence(reading, "matrix products in 32 bit", full_s),
            *((Evidence(metric="precision", value=precision),) if precision is not None else ()),
        ),
        prescriptions=(prescription,),
        low_s=low_s,
        high_s=high_s,
        basis=speed_up.basis + (", the rest as it is" if reading.trace.device is not None else ""),
        phases=code_phases(reading) if reading.trace.device is None else (),
        confidence="medium",
    )


def _of_machine(session: Session) -> tuple[bool | None, bool | None]:
    """Whether the hardware has fast bf16 and fp16."""
    if is_cpu_run(session):
        return session.machine.has_fast_cpu_bf16, False
    units = matrix_units(session, None)
    return units.bf16, units.fp16


def _prescription(has_bf16: bool | None, has_fp16: bool | None) -> Prescription | None:
    """The fastest precision that the hardware has; None without one."""
    if has_bf16 is None and not has_fp16:
        raise Skip("whether the hardware has fast 16-bit matrix products is not known")
    if not has_bf16 and not has_fp16:
        return None
    treatment, flag = ("precision-bf16", "bf16-mixed") if has_bf16 else ("precision-fp16", "16-mixed")
    return Prescription(
        treatment=treatment,
        summary=f'set precision="{flag}"',
        safety="numerics",
        effort="one line",
        trainer_flags={"precision": flag},
        code=f'Trainer(..., precision="{flag}")',
    )


RULE = Rule(code=CODE, name=NAME, category=CATEGORY, docs=DOCS, check=check)
