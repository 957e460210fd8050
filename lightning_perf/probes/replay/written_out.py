"""Functions of torch that a model writes out in several operators."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch.nn import functional

from lightning_perf import interrupts
from lightning_perf.probes import plain

from .calls import Call, CallLog, TensorSpec
from .functions import Bound, Cheaper, Readers, Work, function_of, map_specs, readers_of

MAX_OPERATORS = 14
"""Operators of one function at most; a longer chain does something else as well."""

_BY_ELEMENT = {
    f"aten::{name}"
    for name in (
        "add", "sub", "rsub", "mul", "div", "neg", "pow", "sqrt", "rsqrt", "reciprocal", "exp", "log", "tanh", "erf",
        "sigmoid", "softplus",
    )
}  # fmt: skip
_BY_ROW = {f"aten::{name}" for name in ("mean", "sum", "std", "var", "var_mean", "amax")}
_ANCHORS = ("aten::tanh", "aten::erf", "aten::sigmoid", "aten::rsqrt", "aten::sqrt", "aten::std", "aten::exp")
_UNFOLD = "aten::im2col"
_COPIES = ("aten::clone",)
_PRODUCTS = ("aten::mm", "aten::bmm", "aten::addmm")


class _Function(NamedTuple):
    """A function that may be written out around an anchor, and how far its results may differ from torch's.

    ``tolerance`` is relative to the largest result. Norms may divide by another standard deviation, that of a sample.
    """

    name: str
    anchors: str
    call: Callable[..., torch.Tensor]
    tolerance: float = 1e-4


_LAYER_NORM, _RMS_NORM = "F.layer_norm(x, x.shape[-1:])", "F.rms_norm(x, x.shape[-1:])"
_FUNCTIONS = (
    _Function('F.gelu(x, approximate="tanh")', "tanh", partial(functional.gelu, approximate="tanh")),
    _Function("F.gelu(x)", "erf", functional.gelu),
    _Function("F.mish(x)", "tanh", functional.mish),
    _Function("F.silu(x)", "sigmoid", functional.silu),
    _Function(_LAYER_NORM, "sqrt rsqrt std", functional.layer_norm, 0.02),
    _Function(_RMS_NORM, "sqrt rsqrt", functional.rms_norm, 0.02),
    _Function("F.softmax(x, -1)", "exp", partial(torch.softmax, dim=-1)),
    _Function("F.log_softmax(x, -1)", "exp", partial(torch.log_softmax, dim=-1)),
)
_MAX_ANCHORS = 16
_LEAST_PART = 0.002
"""Part of the operators' time that an anchor takes at least; the search takes milliseconds for each."""
_SOME = 2
"""Size of all dimensions but the last, where results are compared."""


def written_out(log: CallLog) -> Iterator[Cheaper]:
    """Find activations, norms and softmaxes that are written out, and convolutions by ``unfold`` and a product."""
    readers = readers_of(log)
    least_s = _LEAST_PART * log.total_ns / 1e9
    anchors = [call for call in log.calls if call.name in _ANCHORS and call.has_backward and call.seconds >= least_s]
    taken: set[int] = set()
    for call in sorted(anchors, key=lambda call: -call.seconds)[:_MAX_ANCHORS]:
        found = _function_around(log, call, readers) if call.index not in taken else None
        if found is not None:
            taken.update(each.index for each in found.work.calls)
            yield found
    for call in log.calls:
        if call.name == _UNFOLD:
            yield from _convolution(call, readers)


def _function_around(log: CallLog, anchor: Call, readers: Readers) -> Cheaper | None:
    """Return the function whose operators are around ``anchor``: the nearest start, and the longest chain from it."""
    before = _connected([anchor], lambda call: [log.calls[i] for i in call.writers if i >= 0])
    after = _connected([anchor], lambda call: readers[call.index])
    around = _connected([*before, *after], lambda call: [log.calls[i] for i in call.writers if i >= 0])
    around = sorted((call for call in around if call.n == anchor.n), key=lambda call: call.index)
    for root in _roots(before):
        members: dict[int, Call] = {}  # by the content of their result
        for call in around:
            if _is_of(call, root, members):
                members[call.content] = call
        for end in reversed(members.values()):
            calls = _needed_for(end, members) if end.out_shape == root.shape else ()
            inner = {call.index for call in calls} - {end.index}
            of_calls = inner | {end.index}
            if anchor not in calls or any(one.index not in of_calls for i in inner for one in readers[i]):
                continue
            with plain.without_overrides(), torch.autocast("cpu", enabled=False), torch.no_grad():
                found = _named(anchor, root, calls)
            if found is not None:
                return found
    return None


def _connected(calls: Sequence[Call], next_to: Callable[[Call], Iterable[Call]]) -> list[Call]:
    """Return the calls, and those that follow from them step by step, the nearest first, up to a limit."""
    found = list(calls)
    most = len(found) + MAX_OPERATORS
    for call in found:
        found += [one for one in next_to(call) if _base(one.name) and one not in found]
        if len(found) >= most:
            break
    return found


def _needed_for(end: Call, members: Mapping[int, Call]) -> tuple[Call, ...]:
    """Return the members that the last one is computed from, in their order; empty if they are too many."""
    todo = [end]
    for call in todo:
        before = (members.get(spec.content[0]) for spec in call.specs)
        todo += [one for one in before if one is not None and one not in todo]
        if len(todo) > MAX_OPERATORS:
            return ()
    return tuple(sorted(todo, key=lambda call: call.index))


def _named(anchor: Call, root: TensorSpec, calls: Sequence[Call]) -> Cheaper | None:
    """Return the function that the operators are, computed from ``root``: that with the nearest results; or None."""
    bounds = tuple(bound for call in calls if (bound := function_of(call)) is not None)
    parameters = [spec for call in calls for spec in call.specs if _is_parameter(spec, root)]
    if len(bounds) < max(2, len(calls)) or len(parameters) > 2:
        return None
    given = _numbers((*(_SOME for _ in root.shape[1:]), root.shape[-1]))
    weights = [1.0 + 0.1 * k + 0.1 * _numbers(spec.shape) for k, spec in enumerate(parameters)]
    wanted = _computed(root, given, weights, calls)
    best: tuple[float, Cheaper] | None = None
    for one in _FUNCTIONS if wanted is not None else ():
        is_norm = one.name in (_LAYER_NORM, _RMS_NORM)
        if _base(anchor.name).removeprefix("aten::") not in one.anchors.split() or (parameters and not is_norm):
            continue
        if one.name == _RMS_NORM and len(parameters) > 1:
            continue
        shape = (root.shape[-1:],) if is_norm else ()
        difference = _difference(one.call(given, *shape, *weights), wanted)
        if difference <= one.tolerance and (best is None or difference < best[0]):
            treated: Bound = one.call, (root._replace(source=-1), *shape, *parameters), {}
            name = one.name[:-1] + ("", ", weight", ", weight, bias")[len(parameters)] + ")"
            site = next((call.site for call in calls if call.site), "")
            work = Work(tuple(calls), bounds, (treated,))
            best = difference, Cheaper("function", work, site, calls[-1].out_shape, function=name)
    return best[1] if best is not None else None


def _difference(one: torch.Tensor, wanted: torch.Tensor | None) -> float:
    """Return the largest difference of two results, relative to the largest result."""
    if wanted is None or one.shape != wanted.shape:
        return math.inf
    return float((one - wanted).abs().max() / wanted.abs().max())


def _computed(
    root: TensorSpec, given: torch.Tensor, weights: Sequence[torch.Tensor], calls: Sequence[Call]
) -> torch.Tensor | None:
    """Return what the operators compute from ``given`` in place of the root, and from the parameters in their order."""
    values: dict[int, torch.Tensor] = {}
    left = list(weights)

    def value_of(spec: TensorSpec) -> torch.Tensor:
        if _is_root(spec, root):
            return given
        if spec.content[0] in values:
            value = values[spec.content[0]]
            return value.unsqueeze(-1) if value.dim() < len(spec.shape) else value
        return left.pop(0)

    with interrupts.suppress(RuntimeError, TypeError, IndexError, KeyError, AttributeError):
        for call in calls:
            bound = function_of(call)
            assert bound is not None
            function, args, kwargs = bound
            values[call.content] = function(*map_specs(value_of, args), **map_specs(value_of, kwargs))
        return values[calls[-1].content]
    return None


def _numbers(shape: Sequence[int]) -> torch.Tensor:
    """Return numbers with another mean and spread in each row, without changing a random stream."""
    counted = torch.arange(math.prod(shape), dtype=torch.float32, device="cpu")
    numbers, rows = torch.sin(1.7 * counted).view(*shape), counted[: math.prod(shape[:-1])].view(*shape[:-1], 1)
    return (1.0 + rows / 4) * numbers + 0.8 - rows / 3


def _base(name: str) -> str:
    """Return the operator's name without the underscore of one in place; empty if no function is written with it."""
    base = name.removesuffix("_")
    return base if base in _BY_ELEMENT or base in _BY_ROW else ""


def _roots(before: Sequence[Call]) -> list[TensorSpec]:
    """Return the tensors from which a function may start, the nearest first: what the calls before an anchor read."""
    found: dict[tuple[tuple[int, int], tuple[int, ...]], TensorSpec] = {}
    for call in before:
        for spec in call.specs:
            found.setdefault((spec.content, spec.shape), spec)
    return [spec for spec in found.values() if spec.shape and spec.shape[-1] > 1][:MAX_OPERATORS]


def _is_of(call: Call, root: TensorSpec, members: Mapping[int, Call]) -> bool:
    """Return whether a call computes with the root, with what members computed, and with small parameters alone."""
    specs = call.specs
    known = [_is_root(spec, root) or _is_result(spec, members.get(spec.content[0])) for spec in specs]
    others = [spec for spec, is_known in zip(specs, known, strict=True) if not is_known]
    return any(known) and all(_is_parameter(spec, root) for spec in others)


def _is_root(spec: TensorSpec, root: TensorSpec) -> bool:
    return (spec.content, spec.shape, spec.stride) == (root.content, root.shape, root.stride)


def _is_result(spec: TensorSpec, call: Call | None) -> bool:
    """Return whether a tensor is all that a call computed, perhaps with a last dimension of one added."""
    return call is not None and spec.content[1] == 0 and spec.shape in (call.out_shape, (*call.out_shape, 1))


def _is_parameter(spec: TensorSpec, root: TensorSpec) -> bool:
    """Return whether a tensor is a parameter with one element for each of a row."""
    return spec.source < 0 and spec.needs_grad and spec.shape == root.shape[-1:] and not _is_root(spec, root)


def _convolution(unfold: Call, readers: Readers) -> Iterator[Cheaper]:
    """Yield a convolution that is written as a product of a weight with an unfolded image, which may be copied."""
    calls = [unfold]
    for names in (_COPIES, _PRODUCTS, _COPIES):
        after = readers[calls[-1].index]
        if len(after) == 1 and after[0].name in names and after[0].n == unfold.n:
            calls.append(after[0])
    product = next((call for call in calls if call.name in _PRODUCTS), None)
    bounds = [function_of(call) for call in calls]
    n_columns = unfold.out_shape[1]
    if product is None or len(unfold.out_shape) != 3 or None in bounds:
        return
    of_columns = {call.index for call in calls}
    weights = [s for s in product.specs if s.source not in of_columns and n_columns in s.shape[-2:]]
    if len(weights) != 1 or any(weights[0].stride[:-2]):
        return  # another weight for each sample or place
    images, named, (*_, one, other) = unfold.named["self"], unfold.named, weights[0].shape
    kernel = weights[0].dense((other if one == n_columns else one, images.shape[1], *named["kernel_size"]))
    options = named["stride"], named["padding"], named["dilation"]
    as_is = tuple(bound for bound in bounds if bound is not None)
    convolve: Bound = functional.conv2d, (images, kernel._replace(needs_grad=True), None, *options), {}
    work = Work(tuple(calls), as_is, (convolve,))
    yield Cheaper("function", work, unfold.site, calls[-1].out_shape, function="F.conv2d(x, weight)")
