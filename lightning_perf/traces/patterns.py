"""Find operators that have a faster form: matrix multiplications, convolutions and attention, by shape or sequence."""

import math
from typing import Any, Final

import numpy as np

from lightning_perf.records import Convolutions, MaterialisedAttention, MatrixShape

from .attribute import OperatorTimes
from .columns import Details, DetailsByRow, Trace
from .intervals import SECOND, Intervals
from .kinds import OPERATOR
from .nesting import Rows
from .stacks import Stacks
from .timeline import Timeline

N_SHAPES: Final = 32
_PRODUCTS: Final = {"aten::mm": 0, "aten::addmm": 1, "aten::bmm": 0, "aten::baddbmm": 1, "aten::_scaled_mm": 0}
_CONVOLUTION: Final = "aten::convolution"
_BATCHED: Final = ("aten::bmm", "aten::baddbmm")
_SOFTMAX: Final = "aten::_softmax"
_SOFTMAX_BACKWARD: Final = "aten::_softmax_backward_data"
_FUSED_ATTENTION: Final = "scaled_dot_product"
_ALIGNMENT: Final = {"c10::half": 8, "c10::bfloat16": 8, "float": 4, "signed char": 16, "char": 16, "double": 2}
"""Elements in 16 bytes, the alignment of matrix units (NVIDIA's deep learning performance guide)."""


def shapes_of(details: Details | None) -> list[list[int]]:
    """Return the recorded input shapes."""
    listed = None if details is None else details.shapes or details.old_shapes
    if not isinstance(listed, list):
        return []
    return [shape if _is_shape(shape) else [] for shape in listed]


def _is_shape(shape: Any) -> bool:
    if not isinstance(shape, list) or not set(map(type, shape)) <= {int}:
        return False
    return not shape or (min(shape) >= 0 and max(shape) < 2**40)


def _type_of(details: Details | None, index: int) -> str:
    kinds = None if details is None else details.types
    return str(kinds[index]) if isinstance(kinds, list) and len(kinds) > index else ""


def has_shapes(timeline: Timeline) -> bool:
    """Return whether input shapes were recorded."""
    return any(any(shapes_of(details)) for details in timeline.trace.details.values())


def _named(timeline: Timeline, *names: str) -> Rows:
    trace = timeline.trace
    rows = trace.rows_named(trace.rows(OPERATOR), lambda name: name in names)
    return timeline.steps.on_host(trace, rows)


def describe_matrix_shapes(timeline: Timeline, times: OperatorTimes) -> tuple[MatrixShape, ...]:
    """Return matrix multiplications and convolutions of the analyzed span by shape, most time first."""
    trace = timeline.trace
    if not has_shapes(timeline):
        return ()
    rows = _named(timeline, *_PRODUCTS, _CONVOLUTION)
    device = times.device_total[rows]
    found: dict[tuple[str, str, str, tuple[int, int, int] | None], list[int]] = {}
    for i, row in enumerate(rows.tolist()):
        details = trace.details.get(row)
        name = trace.name(row)
        first = _PRODUCTS.get(name, 0)
        operands = shapes_of(details)[first : first + 2]
        if len(operands) < 2 or not all(operands):
            continue
        text = " x ".join(str(shape).replace(" ", "") for shape in operands)
        size = _product_size(operands) if name in _PRODUCTS else None
        found.setdefault((name, text, _type_of(details, first), size), []).append(i)
    shapes_seen = []
    for (name, text, dtype, size), own in found.items():
        unit = _ALIGNMENT.get(dtype.lower())
        m, n, k = size or (None, None, None)
        aligned = None if size is None or unit is None else not any(each % unit for each in size)
        shapes_seen.append(
            MatrixShape(
                operator=name, shapes=text, dtype=dtype, calls=len(own), m=m, n=n, k=k, is_aligned=aligned,
                host_s=int(trace.durations[rows[own]].sum()) / SECOND, device_s=int(device[own].sum()) / SECOND,
            )
        )  # fmt: skip
    shapes_seen.sort(key=lambda shape: -(shape.device_s if timeline.has_device_work else shape.host_s))
    return tuple(shapes_seen[:N_SHAPES])


def _product_size(operands: list[list[int]]) -> tuple[int, int, int] | None:
    left, right = operands
    if len(left) < 2 or len(right) != len(left) or left[-1] != right[-2]:
        return None
    return left[-2], right[-1], left[-1]


def describe_convolutions(timeline: Timeline, times: OperatorTimes) -> Convolutions | None:
    """Describe the convolutions of the analyzed span; None without any."""
    trace = timeline.trace
    rows = _named(timeline, _CONVOLUTION)
    if not len(rows):
        return None
    shapes = [shapes_of(trace.details.get(row)) for row in rows.tolist()]
    known = [each for each in shapes if len(each) >= 2 and each[0] and each[1]]
    if not known:
        return Convolutions(n=len(rows))
    inputs = {str(each[0]) for each in known if each[1] == known[0][1]}
    biased = _biased_before_norm(timeline)
    return Convolutions(
        n=len(rows),
        n_input_shapes=len(inputs),
        bias_before_batch_norm_n=len(biased),
        bias_s=_bias_seconds(timeline, times, biased),
    )


def _biased_before_norm(timeline: Timeline) -> Rows:
    """Return convolutions with a bias that are directly followed by a batch normalization."""
    trace = timeline.trace
    names = tuple(f"aten::conv{n}d" for n in (1, 2, 3))
    if not any(_has_bias(trace.details.get(row)) for row in _named(timeline, *names).tolist()):
        return np.empty(0, dtype=np.int64)
    tops = timeline.steps.on_host(trace, timeline.main_operators)
    # A normalization layer first counts its batches, in a tensor of one number.
    additions = trace.rows_named(tops, lambda name: name == "aten::add_")
    counts = [row for row in additions.tolist() if _is_of_numbers(trace.details.get(row))]
    is_counting = np.zeros(len(trace), dtype=np.bool_)
    is_counting[counts] = True
    tops = tops[~is_counting[tops]]
    is_norm = np.zeros(len(trace), dtype=np.bool_)
    is_norm[trace.rows_named(tops, lambda name: name == "aten::batch_norm")] = True
    convolutions = trace.rows_named(tops[:-1][is_norm[tops[1:]]], lambda name: name in names)
    return np.array([row for row in convolutions.tolist() if _has_bias(trace.details.get(row))], dtype=np.int64)


def _is_of_numbers(details: Details | None) -> bool:
    return bool(details and details.shapes) and not any(shapes_of(details))


def _has_bias(details: Details | None) -> bool:
    shapes = shapes_of(details)
    return len(shapes) > 2 and len(shapes[2]) == 1


def _bias_seconds(timeline: Timeline, times: OperatorTimes, convolutions: Rows) -> float | None:
    trace = timeline.trace
    additions = _named(timeline, "aten::add_")
    additions = additions[trace.intervals(convolutions).contains(trace.starts[additions])]
    if not len(additions):
        return None
    spent = times.device_total[additions] if timeline.has_device_work else trace.durations[additions]
    return int(spent.sum()) / SECOND


def describe_attention(timeline: Timeline, times: OperatorTimes, stacks: Stacks) -> MaterialisedAttention | None:
    """Describe attention written as product, softmax and product; None without any.

    The three must follow each other on one thread without another product in between; if shapes were recorded, the
    softmax must run over the result of the first product. Torch's own fused attention is not counted. Times include the
    backward of the softmax, with two products before and two after it.
    """
    trace = timeline.trace
    rows = _named(timeline, *_PRODUCTS, _SOFTMAX, _SOFTMAX_BACKWARD, _CONVOLUTION)
    fused = trace.intervals(trace.rows_named(timeline.top_operators, lambda name: _FUSED_ATTENTION in name))
    rows = rows[~fused.contains(trace.starts[rows])]
    forwards: list[int] = []
    stretches: list[tuple[int, int]] = []
    for thread in np.flatnonzero(np.bincount(trace.thread_ids[rows])).tolist():
        own = rows[trace.thread_ids[rows] == thread].tolist()
        batched = [trace.name(row) in _BATCHED for row in own]
        for i, row in enumerate(own):
            name = trace.name(row)
            if name == _SOFTMAX and all(batched[i - 1 : i + 2 : 2]) and 0 < i < len(own) - 1:
                if _is_softmax_of(trace.details, own[i - 1], row):
                    forwards.append(row)
                    stretches.append((own[i - 1], own[i + 1]))
            elif name == _SOFTMAX_BACKWARD and 2 <= i < len(own) - 2 and sum(batched[i - 2 : i + 3]) == 4:
                stretches.append((own[i - 2], own[i + 2]))
    if not forwards:
        return None
    starts, ends = (np.array(side) for side in zip(*stretches, strict=True))
    moments = Intervals(trace.starts[starts], trace.ends[ends])
    return _attention(timeline, times, stacks, np.array(forwards), moments)


def _attention(
    timeline: Timeline, times: OperatorTimes, stacks: Stacks, softmaxes: Rows, moments: Intervals
) -> MaterialisedAttention:
    trace = timeline.trace
    operators = trace.rows(OPERATOR)
    inside = operators[moments.contains(trace.starts[operators])]
    device = int(times.device_self[inside].sum())
    whole = (timeline.device if timeline.has_device_work else timeline.operators) & timeline.steps.intervals
    spent = device if timeline.has_device_work else moments.total_ns
    site = next((site for site in stacks.sites(softmaxes) if site), None)
    largest = max((_score_matrix_shape(trace, row) for row in softmaxes.tolist()), key=math.prod)
    return MaterialisedAttention(
        n=len(softmaxes),
        host_s=moments.total_ns / SECOND,
        device_s=device / SECOND,
        share=min(spent / whole.total_ns, 1.0) if whole.total_ns else 0.0,
        site=site.place if site else "",
        function=site.function if site else "",
        rows=largest[0] or None,
        columns=largest[1] or None,
    )


def _score_matrix_shape(trace: Trace, softmax: int) -> tuple[int, int]:
    """Return rows and columns of one score matrix; zeros if they were not recorded."""
    shape = next(iter(shapes_of(trace.details.get(softmax))), [])
    return (shape[-2], shape[-1]) if len(shape) >= 2 else (0, 0)


def _is_softmax_of(details: DetailsByRow, product: int, softmax: int) -> bool:
    operands = shapes_of(details.get(product))
    operands = operands[1:3] if len(operands) >= 3 and operands[2] else operands[:2]  # baddbmm adds to its first
    scores = next(iter(shapes_of(details.get(softmax))), [])
    if len(operands) < 2 or not all(operands) or len(scores) < 2:
        return True  # without shapes, the order decides
    return operands[0][-2] == scores[-2] and operands[1][-1] == scores[-1]
