"""Which kernels a step waits for, by kind, divided among the rules that are about them."""

from __future__ import annotations

from lightning_perf.records import TraceRecord
from lightning_perf.traces.kernels import MATRIX_KINDS

from .thresholds import ATTENTION_MIN_SHARE, MATRIX_MIN_SHARE, TENSOR_CORE_MAX_FRACTION
from .trace_signals import on_path_s, path_of, work_share

HALF_PRECISIONS = ("bf16", "fp16", "fp8", "int8")


def kind_path_s(trace: TraceRecord, *kinds: str) -> float:
    """Return the seconds on the critical path in kernels of these kinds that no other rule than one by kind claims.

    Written-out attention is PD309's, converting layouts PD306's, and biases before a normalization are PD314's.
    """
    seconds = dict(path_of(trace).kinds)
    attention = trace.attention
    attention_s = on_path_s(trace, attention.device_s) if attention and attention.share >= ATTENTION_MIN_SHARE else 0.0
    bias_s = (trace.convolutions.bias_s or 0.0) if trace.convolutions is not None else 0.0
    layout_s = trace.kernels.layout_s if trace.kernels is not None else 0.0
    for kind, other_s in (
        ("normalization", attention_s),
        ("matmul", max(0.0, attention_s - seconds.get("normalization", 0.0))),
        ("elementwise", on_path_s(trace, bias_s)),
        ("copy", on_path_s(trace, layout_s)),
    ):
        seconds[kind] = max(0.0, seconds.get(kind, 0.0) - other_s)
    return sum(seconds.get(kind, 0.0) for kind in kinds)


def full_precision_s(trace: TraceRecord) -> float:
    """Return the seconds on the critical path in matrix kernels, if they decide the step and hardly any is 16-bit."""
    kernels = trace.kernels
    if kernels is None or work_share(trace, *MATRIX_KINDS) < MATRIX_MIN_SHARE:
        return 0.0
    half_s = sum(kernels.matrix_precisions.get(each, 0.0) for each in HALF_PRECISIONS)
    fraction = kernels.matrix_tensor_core_fraction or 0.0
    if fraction > TENSOR_CORE_MAX_FRACTION or half_s > TENSOR_CORE_MAX_FRACTION * kernels.matrix_s:
        return 0.0
    return kind_path_s(trace, *MATRIX_KINDS) * (1 - half_s / kernels.matrix_s if kernels.matrix_s > 0 else 1.0)
