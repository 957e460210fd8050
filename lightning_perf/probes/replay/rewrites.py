"""Rewrite operators as a change of the model or its optimizers would: padded, without a bias, with a larger batch."""

import math
from collections.abc import Container, Iterator
from functools import partial

import torch

from lightning_perf import interrupts

from .calls import Call, CallLog, TensorSpec, specs_in
from .functions import ATTENTION, Bound, Work, map_specs, work_for
from .read_rows import LAYERS

PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
MIN_PADDED = 64
"""Smaller products are bound by memory; padding them would add more than it saves."""

_UNIT_BYTES = 16
_PAIRED = ("aten::bmm", "aten::baddbmm", *ATTENTION)
LOSSES = ("aten::nll_loss_forward", "aten::nll_loss2d_forward")
"""Cross-entropy below its softmax."""
_BETWEEN = (
    "aten::_log_softmax", "aten::_to_copy", "aten::clone", "aten::copy_", "aten::mul", "aten::div", "aten::tanh",
)  # fmt: skip
_MAX_CHAIN = 6
"""Operators between an output layer and its loss, e.g. casts and a softmax."""
_BATCH_NORMS = (
    "aten::native_batch_norm", "aten::_native_batch_norm_legit", "aten::cudnn_batch_norm", "aten::miopen_batch_norm",
    "aten::_batch_norm_with_update", "aten::batch_norm_stats",
)  # fmt: skip


def padded_products(log: CallLog, multiple: int) -> list[Work]:
    """Return matrix multiplications with misaligned dimensions, padded up to a multiple."""

    def pad(spec: TensorSpec) -> TensorSpec:
        sizes = [-(-size // multiple) * multiple if size >= MIN_PADDED else size for size in spec.shape[-2:]]
        shape = (*spec.shape[:-2], *sizes)
        return _resized(spec, shape) if shape != spec.shape else spec

    found: list[Work] = []
    for call in log.calls:
        if call.name not in PRODUCTS:
            continue
        operands = call.specs[-2:]
        sizes = {size for spec in operands for size in spec.shape[-2:]}
        is_misaligned = any(size % multiple for size in sizes) and min(sizes) >= MIN_PADDED
        if is_misaligned and operands[0].dtype.itemsize * multiple == _UNIT_BYTES:
            found.extend(work_for(call, partial(map_specs, pad)))
    return found


def without_bias(log: CallLog) -> list[Work]:
    """Return convolutions and linear layers with a bias that feed a batch normalization, without their bias."""
    producers = {index for call in log.calls if call.name in _BATCH_NORMS for index in call.writers_of_first}
    found: list[Work] = []
    for index in sorted(producers - {-1}):
        call = log.calls[index]
        if call.name == "aten::convolution" and isinstance(call.args[2], TensorSpec):
            found.extend(work_for(call, lambda bound: (bound[0], (*bound[1][:2], None, *bound[1][3:]), bound[2])))
        elif call.name == "aten::addmm":
            found.extend(work_for(call, lambda bound: (torch.mm, bound[1][1:3], {})))
    return found


def without_dropped(log: CallLog) -> list[Work]:
    """Return the operators that compute gradients for parameters without an optimizer, changed to leave these out."""

    def leave_out(spec: TensorSpec) -> TensorSpec:
        return spec._replace(needs_grad=False) if spec.is_dropped else spec

    concerned = [call for call in log.calls if any(spec.is_dropped for spec in call.specs)]
    return [work for call in concerned for work in work_for(call, partial(map_specs, leave_out))]


def double_batch(log: CallLog) -> list[Work]:
    """Return the operators that work on the batch, on one twice as large, which runs half as often.

    Raises:
        ValueError: The size of the batch is not known, or no operator reads it.
    """
    n_samples = log.n_samples
    if not n_samples:
        raise ValueError("the size of the batch is not known")
    if log.batch.is_read() is False:
        raise ValueError("no operator of the step reads the batch")
    scaled: set[int] = set()

    def double(spec: TensorSpec) -> TensorSpec:
        if not spec.shape or spec.shape[0] % n_samples:
            return spec
        is_input = spec.source < 0 and not spec.needs_grad and spec.shape[0] == n_samples
        if not is_input and spec.source not in scaled:
            return spec
        return _resized(spec, (2 * spec.shape[0], *spec.shape[1:]))

    found: list[Work] = []
    for call in log.calls:
        if any(double(spec) != spec for spec in call.specs):
            scaled.add(call.index)
            works = work_for(call, partial(map_specs, double))
            found.extend(work._replace(part=0.5) for work in works if _fits(work.treated[0]))
    return found


def shorter_sequences(log: CallLog, part: float) -> list[Work]:
    """Return the operators that work on sequences, on sequences of a part of the length.

    Tensors are made smaller in each dimension that is the length, or the length times the batch; behind convolutions
    also half or a quarter of it, as strides leave them. Operators of a recurrence, which run once per position, run
    less often.

    Raises:
        ValueError: The length is not known, or cannot be distinguished from another size.
    """
    n, specs = log.n_samples, [spec for call in log.calls for spec in call.specs]
    inputs = [spec for spec in specs if spec.source < 0 and len(spec.shape) == 2 and spec.shape[0] == n]
    lengths = {spec.shape[1] for spec in inputs if not spec.dtype.is_floating_point}
    lengths = lengths or ({log.padded_length} if log.padded_length else lengths)
    length = max(lengths, default=0)
    if not n or not lengths or min(lengths) < length - 1:  # language models drop a position to predict the next token
        raise ValueError("the length of the sequences is not known")
    less = length - max(1, round(part * length))
    sizes = {times * (length - k): times * max(1, length - less - k) for times in (1, n) for k in (1, 0)}
    if any(call.name == "aten::convolution" for call in log.calls):
        strided = (length // 2, length // 4)
        sizes |= {times * size: times * max(1, round(part * size)) for times in (1, n) for size in strided if size > 1}
    if n in sizes or _is_size_of_layer(log, sizes, {n, n * length, n * (length - 1)}):
        raise ValueError(f"the length of the sequences, {length}, is also another size of the model")

    def shorten(spec: TensorSpec) -> TensorSpec:
        if spec.source < 0 and spec.needs_grad:
            return spec  # a parameter
        shape = tuple(sizes.get(size, size) for size in spec.shape)
        if len(shape) > 2 and spec.shape[0] <= length and spec.shape[0] % n == 0 and shape[1:] != spec.shape[1:]:
            shape = (spec.shape[0], *shape[1:])  # of attention: the batch times its heads, which may equal the length
        return _resized(spec, shape) if shape != spec.shape else spec

    found: list[Work] = []
    for call in log.calls:
        n_times = round(call.n / length)
        if any(shorten(spec) != spec for spec in call.specs):
            found.extend(work for work in work_for(call, partial(map_specs, shorten)) if _fits(work.treated[0]))
        elif n_times and abs(call.n - n_times * length) <= n_times:
            found.extend(work._replace(part=1 - less / length) for work in work_for(call, lambda bound: bound))
    return found


def fewer_targets(log: CallLog, part: float) -> list[Work]:
    """Return the operators from the output layer to the largest cross-entropy, on a part of the positions.

    Raises:
        ValueError: No output layer feeds it.
    """
    chain = output_layer_of(log)
    if not chain:
        raise ValueError("the output layer before the loss is not known")
    *between, product = chain
    n_classes = product.specs[-1].shape[-1]

    def reduced(spec: TensorSpec, dim: int) -> TensorSpec:
        size = max(1, round(part * spec.shape[dim]))
        return _resized(spec, (*spec.shape[:dim], size, *spec.shape[dim + 1 :]))

    def with_fewer_rows(bound: Bound) -> Bound:
        *bias, given, weight = specs_in(bound)
        return bound[0], (*bias, reduced(given, len(given.shape) - 2), weight), bound[2]

    def with_fewer_positions(spec: TensorSpec) -> TensorSpec:
        dims = [dim for dim, size in enumerate(spec.shape) if size > 1]
        if n_classes not in spec.shape or len(dims) < 2:
            return spec
        return reduced(spec, next(dim for dim in reversed(dims) if spec.shape[dim] != n_classes or dim == dims[0]))

    works = [work for call in between for work in work_for(call, partial(map_specs, with_fewer_positions))]
    works += work_for(product, with_fewer_rows)
    return [work for work in works if _fits(work.treated[0])]


def output_layer_of(log: CallLog) -> list[Call]:
    """Return the operators before the largest cross-entropy, back to the product of its output layer; empty if unknown.

    Between both, only the softmax and operators that keep each position to itself are allowed.
    """
    losses = [call for call in log.calls if call.name in LOSSES and len(call.specs) >= 2]
    loss = max(losses, key=lambda call: math.prod(call.specs[0].shape), default=None)
    chain: list[Call] = []
    source, loss_shape = (loss.specs[0].source, loss.specs[0].shape) if loss is not None else (-1, ())
    while source >= 0 and len(chain) < _MAX_CHAIN:
        chain.append(log.calls[source])
        if chain[-1].name in LAYERS:
            return chain if chain[-1].specs[-1].shape[-1] in loss_shape else []
        if chain[-1].name not in _BETWEEN:
            return []
        source = next((spec.source for spec in chain[-1].specs if spec.source >= 0), -1)
    return []


def _is_size_of_layer(log: CallLog, sizes: Container[int], of_batch: set[int]) -> bool:
    """Return whether a weight has one of these sizes, or all dimensions of a batched product do.

    ``of_batch`` are the first sizes of the batch, and of a view of it as a matrix.
    """
    for call in log.calls:
        if call.name in _PAIRED and all(size in sizes for spec in call.specs[:2] for size in spec.shape[-2:]):
            return True
        if call.name not in (*PRODUCTS, "aten::convolution"):
            continue
        given = [_before_cast(log, spec) for spec in call.specs]
        weights = [s for s in given if s.source < 0 and (s.needs_grad or not {*s.shape[:1]} & of_batch)]
        if any(size in sizes for spec in weights for size in spec.shape):
            return True
    return False


def _before_cast(log: CallLog, spec: TensorSpec) -> TensorSpec:
    """Return what a tensor was cast from, as autocast casts weights; itself if it is no cast."""
    writer = log.calls[spec.source] if spec.source >= 0 else None
    return writer.specs[0] if writer is not None and writer.name == "aten::_to_copy" and writer.specs else spec


def _fits(bound: Bound) -> bool:
    """Return whether a function accepts these shapes: arguments such as sizes may belong to the smaller batch."""
    with interrupts.suppress(RuntimeError, NotImplementedError, IndexError), torch.no_grad():
        function, args, kwargs = map_specs(_on_meta, bound)
        function(*args, **kwargs)
        return True
    return False


def convolutions_alone(log: CallLog) -> list[Work]:
    """Return convolutions, and their backward as an operator of its own, the same on both sides.

    Autograd would run backward in a thread of its own, where cuDNN keeps the choices that it made for the training.
    """
    return [work for call in log.calls if call.name == "aten::convolution" for work in _convolution_alone(call)]


def _convolution_alone(call: Call) -> Iterator[Work]:
    given = call.named
    if not all(isinstance(given[name], TensorSpec) for name in ("input", "weight")):
        return
    plain = map_specs(lambda spec: spec._replace(needs_grad=False), given)
    names = [argument.name for argument in call.func._schema.arguments]
    bounds: list[Bound] = [(torch.ops.aten.convolution.default, tuple(plain[name] for name in names), {})]
    needed = tuple(isinstance(given[n], TensorSpec) and given[n].needs_grad for n in ("input", "weight", "bias"))
    if any(needed):
        out = torch.ops.aten.convolution.default(*map_specs(_on_meta, bounds[0][1]))
        gradient = TensorSpec(tuple(out.shape), out.stride(), out.dtype, False, -1)
        bias_sizes = tuple(given["bias"].shape) if isinstance(given["bias"], TensorSpec) else None
        rest = tuple(plain[name] for name in names[3:])
        args = (gradient, plain["input"], plain["weight"], bias_sizes, *rest, needed)
        bounds.append((torch.ops.aten.convolution_backward.default, args, {}))
    yield Work((call,), tuple(bounds), tuple(bounds))


def _on_meta(spec: TensorSpec) -> torch.Tensor:
    return torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device="meta")


def _resized(spec: TensorSpec, shape: tuple[int, ...]) -> TensorSpec:
    """Return a spec of another shape with its dimensions in the same order in memory."""
    stride, step = [0] * len(shape), 1
    for place in sorted(range(len(shape)), key=lambda d: (spec.stride[d], math.prod(spec.shape[d:]))):
        if spec.stride[place]:  # an expanded dimension stays one
            stride[place], step = step, step * shape[place]
    return spec._replace(shape=shape, stride=tuple(stride))
