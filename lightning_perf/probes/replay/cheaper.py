"""Find operators whose results other operators give in less time, and replay those in their place."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch

from lightning_perf.records import CheaperKind, CheaperOperator

from .calls import Call, CallLog, TensorSpec
from .functions import Bound, Work, function_of, map_specs
from .reads import SORT

MAX_FACTOR, GOOD_FACTOR = 13, 7
"""Largest prime factors of lengths that MKL and cuFFT have fast code for; recommended ones keep to the second."""

_MAX_READ = 0.25
"""Part of a sort; to find medians and quantiles, which are at neither end, ``topk`` is no help."""
_TRANSFORMS = ("aten::_fft_r2c", "aten::_fft_c2r", "aten::_fft_c2c")

Tensor = torch.Tensor


class _Found(NamedTuple):
    """Operators, and those in their place. ``size`` and ``better`` are as in ``CheaperOperator``."""

    kind: CheaperKind
    work: Work
    site: str
    shape: tuple[int, ...]
    size: int = 0
    better: int = 0


def cheaper_operator(log: CallLog) -> CheaperOperator | None:
    """Return the record of the costliest kind of such operators; None without any."""
    found = _costliest(log)
    if not found:
        return None
    most = max(found, key=lambda one: one.work.seconds)
    return CheaperOperator(
        kind=most.kind,
        shape=most.shape,
        size=most.size,
        better=most.better,
        n_operators=sum(one.work.n for one in found),
        total_s=sum(one.work.seconds for one in found),
        site=most.site,
    )


def cheaper(log: CallLog) -> list[Work]:
    """Return the operators of ``cheaper_operator``, and those in their place."""
    return [one.work for one in _costliest(log)]


def _costliest(log: CallLog) -> list[_Found]:
    """Return the operators of the kind that takes the most time."""
    by_kind: dict[CheaperKind, list[_Found]] = {}
    for find in (_transforms, _sorts, _penalties):
        for one in find(log):
            by_kind.setdefault(one.kind, []).append(one)
    return max(by_kind.values(), key=lambda found: sum(one.work.seconds for one in found), default=[])


def _transforms(log: CallLog) -> Iterator[_Found]:
    """Find transforms and inverse ones of a length with a large prime factor, as in a convolution or a filter.

    Without an inverse, a spectrum is wanted, whose frequencies depend on the length.
    """
    calls = [call for call in log.calls if call.name in _TRANSFORMS and call.specs]
    inverse = {_length(call) for call in calls if call.name == "aten::_fft_c2r" or call.named.get("forward") is False}
    for call in calls:
        size = _length(call)
        bound = function_of(call)
        if size not in inverse or size <= 1 or _largest_factor(size) <= MAX_FACTOR or bound is None:
            continue
        better = _good_length(size)
        longer = _lengthened(bound, call, size, better)
        yield _Found("transform", Work((call,), (bound,), (longer,)), call.site, call.out_shape, size, better)


def _length(call: Call) -> int:
    """Return the length of the last dimension that is transformed."""
    named = call.named
    shape, dims = named["self"].shape, named["dim"]
    return int(named["last_dim_size"]) if call.name == "aten::_fft_c2r" else shape[dims[-1]] if dims else 0


def _lengthened(bound: Bound, call: Call, size: int, better: int) -> Bound:
    """Return the transform with another length; half-complex tensors have about half of its elements."""
    sizes = {size: better, size // 2 + 1: better // 2 + 1}
    dims = {dim % len(call.named["self"].shape) for dim in call.named["dim"]}

    def change(spec: TensorSpec) -> TensorSpec:
        shape = tuple(sizes.get(each, each) if place in dims else each for place, each in enumerate(spec.shape))
        return _dense(spec, shape)

    function, args, kwargs = map_specs(change, bound)
    return function, tuple(better if type(each) is int and each == size else each for each in args), kwargs


def _sorts(log: CallLog) -> Iterator[_Found]:
    """Find sorts of which only the first or the last elements are read."""
    for call in log.calls:
        if call.name != SORT or not call.specs or call.named.get("stable"):
            continue
        spec, dim = call.named["self"], call.named["dim"]
        needed, bound = log.reads.needed(call.index), function_of(call)
        if not spec.shape or bound is None or not 0 < needed <= _MAX_READ * spec.shape[dim]:
            continue
        top: Bound = torch.topk, (spec, needed, dim, bool(call.named["descending"])), {}
        yield _Found("sort", Work((call,), (bound,), (top,)), call.site, spec.shape, spec.shape[dim], needed)


def _penalties(log: CallLog) -> Iterator[_Found]:
    """Find sums of squares of parameters in the loss, whose gradients are a multiple of the parameters."""
    squares = [call for call in log.calls if call.name == "aten::pow" and call.named.get("exponent") == 2]
    of_parameters = {call.index: call for call in squares if _is_parameter(call.specs)}
    norms = [call for call in log.calls if call.name == "aten::linalg_vector_norm" and not call.out_shape]
    norms = [call for call in norms if call.named["ord"] == 2 and _is_parameter(call.specs)]
    are_squared = not {call.index for call in norms}.isdisjoint(call.specs[0].source for call in squares if call.specs)
    for call in norms if are_squared else ():
        yield from _penalty(call)
    for call in log.calls:
        square = of_parameters.get(call.specs[0].source) if len(call.specs) == 1 else None
        if square is not None and call.name == "aten::sum" and not call.out_shape:
            yield from _penalty(square, call)


def _penalty(*calls: Call) -> Iterator[_Found]:
    """Yield the sum of a parameter's squares; in its place, a multiple of the parameter is added to its gradient."""
    as_is = tuple(bound for call in calls if (bound := function_of(call)) is not None)
    spec = calls[0].specs[0]
    gradient = spec._replace(needs_grad=False)
    if len(as_is) == len(calls):
        work = Work(calls, as_is, ((_with_decay, (gradient, gradient), {}),))
        yield _Found("penalty", work, calls[0].site, spec.shape)


def _is_parameter(specs: list[TensorSpec]) -> bool:
    """Return whether an operator gets one parameter only; one element takes no time."""
    return len(specs) == 1 and specs[0].source < 0 and specs[0].needs_grad and math.prod(specs[0].shape) > 1


def _with_decay(gradient: Tensor, parameter: Tensor) -> Tensor:
    return torch.add(gradient, parameter, alpha=1e-4)


def _dense(spec: TensorSpec, shape: tuple[int, ...]) -> TensorSpec:
    """Return a contiguous tensor of another shape."""
    if shape == spec.shape:
        return spec
    strides = tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))
    return spec._replace(shape=shape, stride=strides, source=-1)


def _largest_factor(n: int) -> int:
    largest, divisor = 1, 2
    while divisor * divisor <= n:
        while n % divisor == 0:
            largest, n = divisor, n // divisor
        divisor += 1
    return max(largest, n)


def _good_length(n: int) -> int:
    """Return the smallest length from this one on that has small prime factors only."""
    while _largest_factor(n) > GOOD_FACTOR:
        n += 1
    return n
