"""PD301: matrix products in full precision on hardware that has faster ones."""

from __future__ import annotations

from lightning_perf.records import Evidence, Finding, Prescription, Session, StageTimes, TraceRecord
from lightning_perf.rules.gain import timed_finding
from lightning_perf.rules.rule import Rule, Skip
from lightning_perf.rules.signals import FULL_PRECISION, is_cpu_run, phase_s, steady_of
from lightning_perf.rules.wording import percent

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
MIN_MATMUL_PARAMETER_FRACTION = 0.90
# What low precision does to matrix kernels: from 1.5x (the lower end that the sources give) to 8x (half of the 16x
# between an A100's datasheet rates of 312 bf16 and 19.5 fp32 TFLOP/s; large products reach about that).
LOW_SPEED_UP = 1.5
HIGH_SPEED_UP = 8.0

MATRIX_KINDS = ("matmul", "convolution", "attention")
MATRIX_OPERATORS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::mkldnn_convolution")

DOCS = """\
## What it measures
In a profiler window, the share of device time in matrix products and convolutions, and how much of it runs on matrix
units (Tensor Cores). Without a window, only whether the model, the hardware and the Trainer's precision make it likely.

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
autocast.

## Sources
The profiling lecture (mixed precision 1.5-2x, 2-3x on Tensor Cores); torch-tb-profiler's Tensor Core advice; NVIDIA's
datasheets; 2.3x measured for a stack of matrix products on a CPU with AMX.
"""


def check(session: Session) -> Finding | None:
    """Reads a profiler window where there is one, else the settings."""
    steady = steady_of(session)
    precision = session.settings.trainer.precision
    if precision is None:
        raise Skip("the Trainer's precision is not known")
    if precision not in FULL_PRECISION:
        return None
    treatment, flag = _fast_precision(session)
    if not flag:
        return None
    prescription = Prescription(
        treatment=treatment,
        summary=f'set precision="{flag}"',
        safety="numerics",
        effort="one line",
        trainer_flags={"precision": flag},
        code=f'Trainer(..., precision="{flag}")',
    )
    compute_s = phase_s(steady, "forward", "backward")
    traces = [w.trace for w in session.windows if w.status == "recorded" and w.trace is not None]
    for trace in reversed(traces):
        share = _matrix_share(trace)
        if share is not None:
            return _measured(session, steady, trace, share, prescription)
    model = session.settings.model
    if model is None or model.matmul_parameter_fraction is None:
        raise Skip("no profiler window, and what the model consists of is not known")
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


def _measured(
    session: Session, steady: StageTimes, trace: TraceRecord, share: float, prescription: Prescription
) -> Finding | None:
    fraction = trace.kernels.tensor_core_fraction if trace.kernels else None
    if share < MIN_MATRIX_SHARE or (fraction or 0.0) > MAX_TENSOR_CORE_FRACTION:
        return None
    claims = {name: phase_s(steady, name) * share * (1 - 1 / HIGH_SPEED_UP) for name in ("forward", "backward")}
    compute_s = phase_s(steady, "forward", "backward")
    return timed_finding(
        steady,
        code=CODE,
        name=NAME,
        category=CATEGORY,
        summary=f"{percent(share)} of the computing is matrix products in 32 bit. The hardware has faster 16-bit ones.",
        evidence=(
            Evidence(
                metric="share of matrix products in the profiler window",
                value=share,
                unit="fraction",
                threshold=MIN_MATRIX_SHARE,
                n=len(trace.steps) or None,
            ),
            *(
                (
                    Evidence(
                        metric="share of kernel time on matrix units",
                        value=fraction,
                        unit="fraction",
                        threshold=MAX_TENSOR_CORE_FRACTION,
                        n=trace.n_kernels,
                    ),
                )
                if fraction is not None
                else ()
            ),
            Evidence(metric="precision", value=str(session.settings.trainer.precision)),
        ),
        prescriptions=(prescription,),
        claims=claims,
        low_s=compute_s * share * (1 - 1 / LOW_SPEED_UP),
        basis=f"matrix products {LOW_SPEED_UP:g}x to {HIGH_SPEED_UP:g}x faster, the rest as it is",
        confidence="medium",
    )


def _fast_precision(session: Session) -> tuple[str, str]:
    """Treatment and flag of the fastest precision that the hardware has; empty without one."""
    if is_cpu_run(session):
        has_bf16, has_fp16 = session.machine.has_fast_cpu_bf16, False
    else:
        devices = session.machine.devices
        has_bf16 = None if any(d.has_fast_bf16 is None for d in devices) else all(d.has_fast_bf16 for d in devices)
        has_fp16 = bool(devices) and all(d.has_fast_fp16 for d in devices)
    if has_bf16:
        return "precision-bf16", "bf16-mixed"
    if has_fp16:
        return "precision-fp16", "16-mixed"
    if has_bf16 is None:
        raise Skip("whether the hardware has fast 16-bit matrix products is not known")
    return "", ""


def _matrix_share(trace: TraceRecord) -> float | None:
    """Share of matrix products in the work of a window; None where it shows no work."""
    if trace.kernels is not None and trace.kernels.top:
        return min(1.0, sum(kernel.share for kernel in trace.kernels.top if kernel.kind in MATRIX_KINDS))
    total_s = sum(operator.host_self_s for operator in trace.operators)
    if total_s <= 0:
        return None
    return sum(o.host_self_s for o in trace.operators if o.name in MATRIX_OPERATORS) / total_s


RULE = Rule(code=CODE, name=NAME, category=CATEGORY, docs=DOCS, check=check)
