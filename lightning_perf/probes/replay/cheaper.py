"""Find operators whose results other operators give in less time, and replay those in their place."""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import torch
from scipy.fft import next_fast_len

from lightning_perf.probes.sampled_steps.known_result_functions import LIKE
from lightning_perf.records import CheaperOperator

from .calls import INTERPOLATIONS, Call, CallLog, TensorSpec
from .functions import Bound, Cheaper, Work, costliest, function_of, map_specs, readers_of
from .packed import packed_layers, with_weights
from .products import in_other_order, read_along_diagonal, with_fewer_rows
from .reads import SORT
from .structured import factorized_again, scattered_rows, separable_kernels
from .written_out import written_out

_FAST = math.prod((2, 3, 5, 7, 11, 13)) ** 64
"""A multiple of all lengths without larger prime factors, for which MKL has fast code; cuFFT's are smaller."""

_MAX_READ = 0.25
"""Part of a sort; to find medians and quantiles, which are at neither end, ``topk`` is no help."""
MIN_TAPS = 64
"""Least length of a kernel with which Fourier transforms may be faster."""

_SPECTRA_AT_ONCE = 6
"""Copies of all spectra that exist at a time, with gradients, as peaks of the process's memory showed."""

_PAD = "aten::constant_pad_nd"
_TRANSFORMS = ("aten::_fft_r2c", "aten::_fft_c2r", "aten::_fft_c2c")

_ADDING = {f"aten::{name}" for name in ("add", "sub", "sum", "mean", "_to_copy")}
_SCALING = ("aten::mul", "aten::div")
_GATHERING = ("aten::stack", "aten::cat")
"""Operators by which a penalty gets into the loss."""

Tensor = torch.Tensor


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
        function=most.function,
        n_operators=sum(one.work.n for one in found),
        total_s=sum(one.work.seconds for one in found),
        site=most.site,
    )


def cheaper(log: CallLog) -> list[Work]:
    """Return the operators of ``cheaper_operator``, and those in their place."""
    return [with_weights(one.work) if one.kind == "packed" else one.work for one in _costliest(log)]


def _costliest(log: CallLog) -> list[Cheaper]:
    """Return the operators of the kind, and the function, that takes the most time.

    They are found once: after the step, nothing would show that its results are still read.
    """
    if log.cheaper is None:
        found = (one for find in _FINDERS for one in find(log))
        log.cheaper = costliest(found, lambda one: (one.kind, one.function), lambda one: one.work.seconds)
    return log.cheaper


def _transforms(log: CallLog) -> Iterator[Cheaper]:
    """Find convolutions by transforms of a length with a large prime factor.

    Signals are padded to this length and there is an inverse transform: more zeros change nothing. Other spectra would
    have other frequencies.
    """
    calls = [call for call in log.calls if call.name in _TRANSFORMS and call.specs]
    padded = {_length(call) for call in calls if any(log.calls[i].name == _PAD for i in call.writers if i >= 0)}
    inverse = {_length(call) for call in calls if call.name == "aten::_fft_c2r" or call.named.get("forward") is False}
    for call in calls:
        size, bound = _length(call), function_of(call)
        if size not in padded & inverse or not size or _FAST % size == 0 or bound is None:
            continue
        better = next_fast_len(size, real=call.name != "aten::_fft_c2c")
        longer = _lengthened(bound, call, size, better)
        yield Cheaper("transform", Work((call,), (bound,), (longer,)), call.site, call.out_shape, size, better)


def _length(call: Call) -> int:
    """Return the length of the last dimension that is transformed."""
    named = call.named
    shape, dims = named["self"].shape, named["dim"]
    return int(named["last_dim_size"]) if call.name == "aten::_fft_c2r" else shape[dims[-1]] if dims else 0


def _lengthened(bound: Bound, call: Call, size: int, better: int) -> Bound:
    """Return the transform with another length; half-complex tensors have about half of its elements."""
    spec: TensorSpec = call.named["self"]
    last = call.named["dim"][-1] % len(spec.shape)
    new = {size: better, size // 2 + 1: better // 2 + 1}[spec.shape[last]]
    longer = spec.dense((*spec.shape[:last], new, *spec.shape[last + 1 :]))
    function, args, kwargs = bound
    return function, (longer, *(better if type(each) is int and each == size else each for each in args[1:])), kwargs


def _convolutions(log: CallLog) -> Iterator[Cheaper]:
    """Find convolutions of signals with long kernels, which Fourier transforms do in fewer operations."""
    for call in log.calls:
        plain = _plain_convolution(call, 1)
        if plain is None or plain[1].shape[-1] < MIN_TAPS:
            continue
        bound = function_of(call)
        if bound is not None:
            (signals, kernels), padding = plain, call.named["padding"][0]
            n_taps = kernels.shape[-1]
            bias = () if call.named["bias"] is None else (call.named["bias"],)
            function = partial(_convolved_by_transforms, padding, call.named["groups"])
            by_transforms: Bound = function, (*plain, *bias), {}
            n_rows = sum(math.prod(shape[:2]) for shape in (signals.shape, kernels.shape, call.out_shape))
            spectra_bytes = n_rows * (signals.shape[-1] + 2 * padding + n_taps - 1) * signals.dtype.itemsize
            work = Work((call,), (bound,), (by_transforms,), between_bytes=_SPECTRA_AT_ONCE * spectra_bytes)
            yield Cheaper("convolution", work, call.site, signals.shape, n_taps)


def _plain_convolution(call: Call, n_dims: int) -> tuple[TensorSpec, TensorSpec] | None:
    """Return input and kernel of a convolution over so many dimensions; None if it is another, or skips elements."""
    named = call.named if call.name == "aten::convolution" else {}
    if not named or named["transposed"] or {*named["stride"], *named["dilation"]} != {1}:
        return None
    specs = named["input"], named["weight"]
    if any(not isinstance(spec, TensorSpec) or spec.dtype not in (torch.float32, torch.float64) for spec in specs):
        return None  # transforms of 16-bit numbers are not supported
    return specs if len(call.specs) >= 2 and all(len(spec.shape) == n_dims + 2 for spec in specs) else None


def _convolved_by_transforms(padding: int, groups: int, signals: Tensor, kernels: Tensor, *bias: Tensor) -> Tensor:
    signals = torch.nn.functional.pad(signals, (padding, padding)) if padding else signals
    n_lags = signals.shape[-1] - kernels.shape[-1] + 1
    n = next_fast_len(signals.shape[-1] + kernels.shape[-1] - 1, real=True)
    spectra = torch.fft.rfft(signals, n).unflatten(1, (groups, -1))
    filters = torch.fft.rfft(kernels, n).unflatten(0, (groups, -1)).conj()
    is_one_each = kernels.shape[:2] == (groups, 1)
    product = spectra * filters[:, 0] if is_one_each else torch.einsum("bgif,goif->bgof", spectra, filters)
    correlations: Tensor = torch.fft.irfft(product, n)[..., :n_lags].flatten(1, 2)
    return correlations + bias[0][:, None] if bias else correlations


def _enlarged(log: CallLog) -> Iterator[Cheaper]:
    """Find pointwise convolutions to fewer channels behind an interpolation: they give the same in the other order."""
    readers = readers_of(log)
    for call in log.calls:
        plain = _plain_convolution(call, 2)
        source = log.calls[plain[0].source] if plain is not None and plain[0].source >= 0 else None
        if plain is None or source is None or source.name not in INTERPOLATIONS or source.n != call.n:
            continue
        if readers[source.index] != [call] or plain[0].shape != source.out_shape:
            continue
        pixels, kernel = plain
        small: TensorSpec = source.named["self"]
        bounds = [function_of(each) for each in (source, call)]
        is_pointwise = {*kernel.shape[2:], call.named["groups"]} == {1} and not any(call.named["padding"])
        if None in bounds or not is_pointwise or kernel.shape[0] >= kernel.shape[1]:
            continue
        as_is = tuple(bound for bound in bounds if bound is not None)
        (enlarge, (_, *more), named), (convolve, (_, *others), _) = as_is
        needs_grad = any(spec.needs_grad for spec in call.specs)
        fewer = small.dense((small.shape[0], kernel.shape[0], *small.shape[2:]))._replace(needs_grad=needs_grad)
        treated: tuple[Bound, ...] = ((convolve, (small, *others), {}), (enlarge, (fewer, *more), named))
        better, size = kernel.shape[:2]
        yield Cheaper("interpolation", Work((source, call), as_is, treated), source.site, pixels.shape, size, better)


def _sorts(log: CallLog) -> Iterator[Cheaper]:
    """Find sorts of which only the first or the last elements are read."""
    for call in log.calls:
        if call.name != SORT or not call.specs or call.named.get("stable"):
            continue
        spec, dim = call.named["self"], call.named["dim"]
        needed, bound = log.sort_reads.needed(call.index), function_of(call)
        if not spec.shape or bound is None or not 0 < needed <= _MAX_READ * spec.shape[dim]:
            continue
        top: Bound = torch.topk, (spec, needed, dim, bool(call.named["descending"])), {}
        yield Cheaper("sort", Work((call,), (bound,), (top,)), call.site, spec.shape, spec.shape[dim], needed)


def _norms_of_rows(log: CallLog) -> Iterator[Cheaper]:
    """Find embeddings with ``max_norm``, which torch limits row by row on a CPU."""
    for call in log.calls:
        n_rows = log.renormed.get(call.index)
        if not n_rows or call.named["norm_type"] != 2:
            continue
        table, indices = call.specs
        rows = torch.randperm(table.shape[0], generator=torch.Generator().manual_seed(0), device="cpu")[:n_rows]
        index = rows[torch.arange(math.prod(indices.shape), device="cpu") % n_rows]
        as_is: Bound = torch.embedding_renorm_, (table, index, call.named["max_norm"], 2.0), {}
        treated: Bound = _renormed, (table, index, call.named["max_norm"]), {}
        yield Cheaper("max_norm", Work((call,), (as_is,), (treated,)), call.site, table.shape, n_rows)


def _renormed(table: Tensor, index: Tensor, most: float) -> Tensor:
    rows = torch.unique(index)
    found = table[rows]
    return table.index_copy_(0, rows, found * (most / found.norm(dim=1, keepdim=True)).clamp(max=1.0))


def _penalties(log: CallLog) -> Iterator[Cheaper]:
    """Find sums of squares of parameters in the loss, whose gradients are a multiple of the parameters."""
    readers = {
        index: [one for one in calls if one.name not in LIKE and any(spec.needs_grad for spec in one.specs)]
        for index, calls in readers_of(log).items()
    }  # without those of a logger
    for call in log.calls:
        if len(call.specs) != 1 or math.prod(call.specs[0].shape) < 2 or not call.has_backward:
            continue  # not in the loss
        if not call.leaves or not call.leaves <= log.reach.updated:
            continue
        after = readers.get(call.index, [])
        if call.name == "aten::linalg_vector_norm" and call.named["ord"] == 2 and not call.out_shape:
            if after and all(_is_square(one) and _is_only_added(one, readers) for one in after):
                yield from _penalty(log, call)
        elif _is_square(call) and len(after) == 1:
            total = after[0]
            is_total = total.name == "aten::sum" and not total.out_shape and total.n == call.n
            if is_total and _is_only_added(total, readers):
                yield from _penalty(log, call, total)


def _is_square(call: Call) -> bool:
    return call.name == "aten::pow" and call.named.get("exponent") == 2


def _is_only_added(call: Call, readers: Mapping[int, Sequence[Call]]) -> bool:
    """Return whether a number is only added up, and scaled by numbers without a gradient."""
    todo, seen = [call], {call.index}
    for one in todo:
        after = [each for each in readers.get(one.index, ()) if each.index not in seen]
        if not all(each.name in _GATHERING or _is_adding(each) for each in after):
            return False
        seen.update(each.index for each in after)
        todo += after
    return True


def _is_adding(call: Call) -> bool:
    if call.name in _SCALING:
        with_gradient = [spec.needs_grad for spec in call.specs]
        return with_gradient[0] and sum(with_gradient) == 1 and math.prod(call.out_shape) == 1
    return call.name in _ADDING and math.prod(call.out_shape) == 1


def _penalty(log: CallLog, *calls: Call) -> Iterator[Cheaper]:
    """Yield the sum of a parameter's squares; in its place, a multiple of the parameter is added to its gradient.

    If the sum is logged as well, it is still computed, without a gradient.
    """
    as_is = tuple(bound for call in calls if (bound := function_of(call)) is not None)
    spec = calls[0].specs[0]
    gradient = parameter = spec._replace(needs_grad=False)
    treated: tuple[Bound, ...] = ((torch.add, (gradient, parameter), {"alpha": 1e-4}),)
    if _is_logged(log, calls[-1].index):
        treated += tuple(map_specs(lambda each: each._replace(needs_grad=False), bound) for bound in as_is)
    if len(as_is) == len(calls):
        yield Cheaper("penalty", Work(calls, as_is, treated), calls[0].site, spec.shape)


def _is_logged(log: CallLog, index: int) -> bool:
    """Return whether a number, or what follows from such numbers alone, is read where no gradient is needed."""
    alone = {index}
    for call in log.calls:
        if call.specs and call.writers <= alone:
            alone.add(call.index)
    return any(
        not alone.isdisjoint(call.writers) and call.name not in LIKE and not any(spec.needs_grad for spec in call.specs)
        for call in log.calls
    )


_FINDERS = (
    _transforms, _convolutions, _enlarged, _sorts, _penalties, in_other_order, read_along_diagonal, with_fewer_rows,
    written_out, _norms_of_rows, factorized_again, separable_kernels, scattered_rows,
    packed_layers,
)  # fmt: skip
