"""Time on the critical path of a trace by kind of kernel, divided among the rules about them."""

from lightning_perf.records import CriticalPath, TraceRecord
from lightning_perf.traces.kernels import MATRIX_KINDS

from .rule import required
from .thresholds import ATTENTION_MIN_SHARE, MATRIX_MIN_SHARE, TENSOR_CORE_MAX_FRACTION

MEMORY_BOUND_KINDS = ("elementwise", "normalization", "reduction", "copy")
_OTHER_PRECISIONS = ("bf16", "fp16", "fp8", "int8", "fp64")


def kind_path_s(trace: TraceRecord, *kinds: str) -> float:
    """Return the seconds on the critical path in kernels of these kinds, without time that more specific rules claim.

    Those rules are PD309 (unfused attention), PD306 (layout conversions) and PD314 (bias before normalization).
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


def full_precision_s(trace: TraceRecord, is_precision_known: bool = False) -> float:
    """Return the seconds on the critical path in fp32 matrix kernels, if they dominate the step and few are in others.

    Unless ``is_precision_known``, hardly any may use matrix units either, as fused attention in full precision does.
    """
    kernels = trace.kernels
    if kernels is None or work_share(trace, *MATRIX_KINDS) < MATRIX_MIN_SHARE:
        return 0.0
    other_s = sum(kernels.matrix_precisions.get(each, 0.0) for each in _OTHER_PRECISIONS)
    fraction = 0.0 if is_precision_known else kernels.matrix_tensor_core_fraction or 0.0
    if fraction > TENSOR_CORE_MAX_FRACTION or other_s > TENSOR_CORE_MAX_FRACTION * kernels.matrix_s:
        return 0.0
    return kind_path_s(trace, *MATRIX_KINDS) * (1 - other_s / kernels.matrix_s if kernels.matrix_s > 0 else 1.0)


def path_of(trace: TraceRecord) -> CriticalPath:
    """Return the critical path of a trace; raise Skip if an older version analyzed it without one."""
    return required(trace.critical_path, "this trace record has no critical path: analyze the trace again")


def path_s(trace: TraceRecord, *causes: str) -> float:
    """Return the seconds of these causes on the critical path; raise Skip if there is no path."""
    causes_s = path_of(trace).causes
    return sum(causes_s.get(cause, 0.0) for cause in causes)


def launching_s(trace: TraceRecord) -> float:
    """Return the seconds in which the device is idle because each launch takes the host long, without other work."""
    return path_s(trace, "launch", "between") - path_of(trace).long_gaps_s


def on_path_s(trace: TraceRecord, seconds: float) -> float:
    """Return the part of these kernel seconds on the critical path, assuming the ratio of all kernels."""
    computing_s = trace.device.compute_s if trace.device is not None else 0.0
    return seconds * min(1.0, path_s(trace, "compute") / computing_s) if computing_s > 0 else 0.0


def kind_s(trace: TraceRecord, *kinds: str) -> float:
    """Return the seconds in kernels of these kinds."""
    if trace.kernels is None:
        return 0.0
    return sum(time.total_s for kind, time in trace.kernels.kinds.items() if kind in kinds)


def work_s(trace: TraceRecord) -> float:
    """Return the seconds in all kernels except collectives."""
    if trace.kernels is None:
        return 0.0
    return kind_s(trace, *(kind for kind in trace.kernels.kinds if kind != "communication"))


def work_share(trace: TraceRecord, *kinds: str) -> float:
    """Return the share of these kinds in the time of all kernels except collectives; 0 without kernels."""
    all_s = work_s(trace)
    return kind_s(trace, *kinds) / all_s if all_s > 0 else 0.0
