"""A log of one step's operators: what is needed to run each again on other tensors.

It holds shapes, strides, dtypes and plain arguments, and keeps no tensor alive.
"""

import functools
import math
import operator
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from lightning_perf.probes.model.operators import rounded_fraction
from lightning_perf.probes.model.tokens import padded_length
from lightning_perf.probes.plain import is_plain_tensor, storage_address
from lightning_perf.probes.sampled_steps.code_lines import is_users_call, user_site
from lightning_perf.probes.sampled_steps.packed_layers import PackedLayers
from lightning_perf.probes.sampled_steps.repeats import RepeatedLookups, n_copies_in
from lightning_perf.probes.sampled_steps.structures import Structure, structure_of
from lightning_perf.probes.sampled_steps.zeros import PRODUCTS, Zeros, is_made_from_indices, zeros_in

from .backward import OTHERS, BackwardTimes, GradientReach
from .read_rows import LAYERS, RowReads
from .reads import SORT, BatchReads, ProductReads, SortReads

MAX_CALLS = 2048
"""Distinct operators kept; further ones only add to the total time."""

OPAQUE = object()
"""An argument that cannot be created again, e.g. a generator or a sparse tensor."""

REPEATABLE = {
    "aten::mm": 1, "aten::addmm": 1, "aten::convolution": 1, "aten::_scaled_dot_product_flash_attention_for_cpu": 3,
}  # fmt: skip
"""Operators that compute each item of the first dimension alone → number of tensors that hold them."""

INTERPOLATIONS = tuple(f"aten::upsample_{name}" for name in ("nearest2d", "bilinear2d", "bicubic2d", "nearest_exact2d"))
MATRIX_PRODUCTS = ("aten::mm", "aten::bmm")
RENORM = "aten::embedding_renorm_"
SCATTERS = ("aten::scatter_reduce", "aten::scatter_add")
_SITED = {
    SORT, *INTERPOLATIONS, *MATRIX_PRODUCTS, "aten::convolution", "aten::_fft_r2c", "aten::_fft_c2r", "aten::_fft_c2c",
    "aten::pow", "aten::linalg_vector_norm", *LAYERS, "aten::tanh", "aten::erf", "aten::sigmoid",
    "aten::rsqrt", "aten::sqrt", "aten::std", "aten::exp", "aten::im2col", RENORM, *SCATTERS,
}  # fmt: skip
"""Operators whose line is looked up, since another operator may do the same faster."""

COPYING = ("aten::cat", "aten::clone", "aten::index", "aten::index_select")
"""Operators whose results are distinguished by what they copy."""

PLAIN_TYPES = (type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
"""Types of arguments that are kept as they are."""


class TensorSpec(NamedTuple):
    """Shape, layout, dtype and origin of a tensor, without its values.

    Attributes:
        needs_grad: Whether the backward pass computes its gradient.
        source: Index of the call that wrote it, the first of equal ones; -1 for parameters, buffers and inputs.
        denormal: Its share of denormal numbers, rounded down to a power of 4 or 0, so that equal layers are one call.
        content: Number of the write, or of the parameter or input, and the offset in its storage: two tensors of the
            first of equal calls are the same if this and their shape are. It does not distinguish calls.
        reach: What its gradient reaches, as in ``GradientReach``.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    needs_grad: bool
    source: int
    denormal: float = 0.0
    content: tuple[int, int] = (0, 0)
    reach: int = OTHERS

    @property
    def is_dropped(self) -> bool:
        """Whether its gradient reaches only parameters that no optimizer has."""
        return self.needs_grad and not self.reach

    @property
    def extent(self) -> int:
        """Number of elements from its first to its last in memory."""
        if 0 in self.shape:
            return 0
        return 1 + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))

    def dense(self, shape: tuple[int, ...]) -> "TensorSpec":
        """Return a contiguous tensor of another shape, which no call wrote."""
        strides = tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))
        return self._replace(shape=shape, stride=strides, source=-1)


class Call:
    """One distinct forward operator: its arguments, with tensors as ``TensorSpec``, how often it ran, and how long.

    Attributes:
        index: Its position in the log.
        n: Calls in the step.
        ns: Nanoseconds of these calls.
        backward_ns: Nanoseconds of the operators of their backward pass; 0 if operators are not timed.
        has_backward: Whether a backward pass went through one of them.
        n_out: Elements of the results of one call.
        out_shape: Shape of its first result; ``out_stride`` its layout.
        gradient_denormal: Share of denormal numbers in its results' gradients, rounded as in ``TensorSpec``.
        writers: Indices of the calls that wrote its tensors; equal calls may have different ones.
        writers_of_first: Those of the first tensor.
        weights: Storages of its first parameter, to find out whether calls share it.
        content: Number of the write of its first result, as in ``TensorSpec.content``.
        leaves: Storages of all tensors that need a gradient and were not computed in the step.
        zeros: Where one of its matrices is mostly zeros on the CPU; None otherwise.
        n_copies: How often each item occurs in what it computes item by item, on the CPU.
        is_users: Whether the user's code calls it, if it multiplies concatenated rows; else False.
        sparse: Layout of its first sparse argument; None without one.
        structure: What its operands on the CPU are made of.
        site: The user's line that called it first, e.g. ``"model.py:31"``, if it broadcasts its tensors, has zeros,
            repeats rows, or is one of those that may be replaced; else empty.
    """

    __slots__ = (
        "args", "backward_ns", "content", "func", "gradient_denormal", "has_backward", "index", "is_users", "kwargs",
        "leaves", "n", "n_copies", "n_out", "ns", "out_dtypes", "out_shape", "out_stride", "site", "sparse",
        "structure", "weights", "writers", "writers_of_first", "zeros",
    )  # fmt: skip

    def __init__(self, index: int, func: Any, args: Any, kwargs: Any, outs: Sequence[torch.Tensor]) -> None:
        self.index, self.func, self.args, self.kwargs = index, func, args, kwargs
        self.out_dtypes, self.n_out = tuple(out.dtype for out in outs), sum(out.numel() for out in outs)
        self.out_shape = tuple(outs[0].shape) if outs else ()
        self.out_stride = outs[0].stride() if outs and outs[0].layout is torch.strided else ()
        self.n = self.ns = self.backward_ns = self.content = 0
        self.gradient_denormal = 0.0
        self.has_backward = False
        self.writers: set[int] = set()
        self.writers_of_first: set[int] = set()
        self.weights: set[int] = set()
        self.leaves: set[int] = set()
        self.site = ""
        self.zeros: Zeros | None = None
        self.n_copies = 1
        self.is_users = False
        self.sparse: torch.layout | None = None
        self.structure: Structure = ""

    @property
    def specs(self) -> list[TensorSpec]:
        """The tensors in its arguments."""
        return specs_in((self.args, self.kwargs))

    @property
    def reach(self) -> int:
        """What gradients reach from it, as in ``GradientReach``."""
        found = [spec.reach for spec in self.specs if spec.needs_grad]
        return functools.reduce(operator.or_, found) if found else OTHERS

    @property
    def n_uses(self) -> int:
        """Number of calls that share the same parameters."""
        return max(1, self.n // len(self.weights)) if self.weights else 1

    @property
    def seconds(self) -> float:
        """Seconds of forward and backward in the step."""
        return (self.ns + self.backward_ns) / 1e9

    @property
    def name(self) -> str:
        """The operator's name, e.g. ``"aten::mm"``."""
        return str(self.func._schema.name)

    @property
    def named(self) -> dict[str, Any]:
        """Its arguments by name, with the operator's defaults."""
        known = self.func._schema.arguments
        defaults = {one.name: one.default_value for one in known if one.has_default_value()}
        return {**defaults, **dict(zip((one.name for one in known), self.args, strict=False)), **self.kwargs}

    @property
    def has_denormals(self) -> bool:
        """Whether its inputs or gradients hold denormal numbers."""
        return self.gradient_denormal > 0 or any(spec.denormal for spec in self.specs)


class CallLog:
    """Log of the calls of one step, filled by a dispatch mode.

    ``n_samples`` of its batch is 0 if unknown; ``batch`` are the tensors that it gets, ``optimizers`` the parameters of
    each, ``unowned`` those that none has. ``padded_length`` is that of the batch's sequences of floats, 0 if unknown.
    ``sort_reads`` is how much of sorted tensors is read, ``row_reads`` which rows of layers' results, ``product_reads``
    whether other code than operators reads products of matrices. ``irregular`` holds calls, by index, whose
    ``n_copies`` is a mean because copies are anywhere in the batch, and the user's line that looks them up;
    ``renormed`` the number of rows whose norms an embedding on a CPU limits. ``cheaper`` is None until operators that
    have a cheaper replacement are searched for.
    """

    def __init__(
        self,
        n_samples: int = 0,
        batch: Iterable[torch.Tensor] = (),
        optimizers: Iterable[Iterable[torch.Tensor]] = (),
        unowned: Iterable[torch.Tensor] = (),
    ) -> None:
        self.n_samples = n_samples
        tensors = [tensor for tensor in batch if is_plain_tensor(tensor)]
        self.batch = BatchReads(tensors)
        self.padded_length = padded_length(tensors)
        self._last_node = self._n_contents = 0
        self.reach = GradientReach(optimizers, unowned)
        self.backward = BackwardTimes()
        self.calls: list[Call] = []
        self.sort_reads = SortReads()
        self.product_reads = ProductReads()
        self.row_reads = RowReads()
        self.packed = PackedLayers()
        self.total_ns = 0
        self._known: dict[Any, Call] = {}
        self._by_node: dict[int, tuple[Call, set[int]]] = {}  # with the storages that went into the call
        self._writers: dict[int, int] = {}
        self._contents: dict[int, int] = {}  # by storage: number of the last write
        self.renormed: dict[int, int] = {}
        self.cheaper: list[Any] | None = None
        self._of_copies: set[int] = set()  # indices of calls that copies of items went into
        self._lookups = RepeatedLookups()
        self.irregular: dict[int, str] = {}
        self._thread = threading.get_ident()

    def add(
        self,
        func: Any,
        args: Any,
        kwargs: dict[str, Any],
        out: Any,
        ns: int,
        is_view: bool,
        denormals: Mapping[int, float],
    ) -> None:
        """Add a call of ``ns`` nanoseconds. ``denormals`` holds shares of denormal numbers by the argument's ``id``."""
        self.total_ns += ns
        name = str(func._schema.name)
        number = self._last_node
        if threading.get_ident() == self._thread:  # each thread has numbers of its own
            number = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
        has_node = number > self._last_node  # autograd made this call's node just before this method was called
        self._last_node = number
        node = torch._C._current_autograd_node()
        has_grad = torch.is_grad_enabled()
        inputs = [] if is_view else [value for value in flat((args, kwargs)) if is_plain_tensor(value)]
        self.batch.see(inputs)
        self.sort_reads.see(inputs)
        self.packed.add(node, name, inputs or args, is_view, out, ns)
        if node is not None:  # with gradients, it is computed again, or is part of a graph of higher order
            known = self._by_node.get(node._sequence_nr()) if not has_grad else None
            self.backward.add(known[0] if known is not None else None, ns, number - 1 if has_node else None)
        if node is not None and not has_grad:
            if known is not None:
                owner, addresses = known
                owner.backward_ns += ns
                owner.has_backward = True
                shares = [denormals[id(v)] for v in args if id(v) in denormals and storage_address(v) not in addresses]
                owner.gradient_denormal = max(owner.gradient_denormal, rounded_fraction(max(shares, default=0.0)))
            else:  # in the backward method of a function of the user's, for example
                self.product_reads.see(self._writers_of(inputs))
                self.row_reads.see(inputs)
            return
        if is_view:  # shares the storage of its base, and so the base's writer
            if name == "aten::detach":
                self.product_reads.see(self._writers_of(args))
                if node is None:  # in backward, autograd detaches what it has saved
                    self.row_reads.see(args)
            return
        given = self._spec(args, has_grad, denormals)
        named = tuple((key, self._spec(kwargs[key], has_grad, denormals)) for key in sorted(kwargs))
        tensors = [value for value in flat(out) if is_plain_tensor(value)]
        key = func, self._key((given, named))
        call = self._known.get(key)
        if call is None:
            if len(self.calls) >= MAX_CALLS:
                self.row_reads.see(inputs)
                return
            if name == "aten::embedding":
                self._lookups.see(args[1], user_site)
            call = Call(len(self.calls), func, given, dict(named), tensors)
            self._known[key] = call
            layouts = (value.layout for value in inputs if value.layout is not torch.strided)
            call.sparse, call.structure = next(layouts, None), structure_of(name, args)
            call.zeros, call.n_copies = self._zeros_in(name, args), self._n_copies(call, args)
            source = getattr(given[LAYERS[name]], "source", -1) if name in LAYERS else -1
            call.is_users = source >= 0 and self.calls[source].name == "aten::cat" and is_users_call()
            if name == RENORM and args[1].device.type == "cpu":
                self.renormed[call.index] = len(args[1].unique())
            is_broadcast = call.n_out > max((spec.extent for spec in call.specs), default=call.n_out)
            if is_broadcast or call.zeros is not None or call.n_copies > 1 or name in _SITED:
                call.site = user_site()
            self.calls.append(call)
        else:  # all equal calls must have them
            if call.zeros is not None and self._zeros_in(name, args) is None:
                call.zeros = None
            if call.n_copies > 1 and call.n_copies != self._n_copies(call, args):
                call.n_copies = 1
            if call.structure and call.structure != structure_of(name, args):
                call.structure = ""
        call.n += 1
        call.ns += ns
        writers = self._writers_of(inputs)
        call.writers.update(writers)
        call.writers_of_first.update(writers[:1])
        if has_grad and has_node and any(v.requires_grad for v in inputs):
            self._by_node[number - 1] = call, {storage_address(value) for value in inputs}
        leaves = [
            storage_address(value)
            for value, writer in zip(inputs, writers, strict=True)
            if writer < 0 and value.requires_grad and storage_address(value)
        ]
        call.weights.update(leaves[:1])  # its bias is shared as often as its weight
        call.leaves.update(leaves)
        self._n_contents += 1
        call.content = call.content or self._n_contents
        for address in map(storage_address, tensors):
            self._writers[address] = call.index
            self._contents[address] = self._n_contents
            self.reach.note(address, call.reach if has_grad else OTHERS)
        if call.n_copies > 1 or any(spec.source in self._of_copies for spec in call.specs):
            self._of_copies.add(call.index)
        if name in MATRIX_PRODUCTS:
            self.product_reads.add(call.index, tensors)
        elif name == SORT:
            self.sort_reads.add(call.index, tensors, call.named["dim"])
        self.row_reads.add(call.index, name, args, inputs, tensors)

    def _writers_of(self, tensors: Iterable[torch.Tensor]) -> list[int]:
        return [self._writers.get(storage_address(value), -1) for value in tensors]

    def _zeros_in(self, name: str, args: Any) -> Zeros | None:
        """Return the matrix of mostly zeros; None if they are trained, or finding them would take time in each step."""
        found = zeros_in(name, args)
        if found is None:
            return None
        matrix, (writer,) = args[found.place], self._writers_of([args[found.place]])
        if found.kind != "sparse":
            return None if writer < 0 and matrix.requires_grad else found
        is_dense = writer >= 0 and not is_made_from_indices(self.calls, writer)
        is_graph = len({*matrix.shape}) == 1  # square; other matrices of the batch hold features
        return None if is_dense or (storage_address(matrix) in self.batch.addresses and not is_graph) else found

    def _n_copies(self, call: Call, args: Any) -> int:
        """Return how often each item occurs in all tensors that an operator of the user's treats item by item."""
        first = PRODUCTS.get(call.name, 0)
        values = [
            (value, self._writers.get(storage_address(value)) in self._of_copies)
            for value in args[first : first + REPEATABLE.get(call.name, 0)]
        ]
        found = {n_copies_in(*value) for value in values}
        n = found.pop() if len(found) == 1 else 1
        if n > 1:
            return n if is_users_call() else 1
        lookups = {self._lookups.lookup_of(*value) for value in values}
        lookup = lookups.pop() if len(lookups) == 1 else None
        if lookup is None or not is_users_call():
            return 1
        self.irregular[call.index] = lookup.site
        return lookup.n_copies

    def _spec(self, value: Any, has_grad: bool, denormals: Mapping[int, float]) -> Any:
        if is_plain_tensor(value):
            address = storage_address(value)
            if value.layout is not torch.strided or not address:
                return OPAQUE
            needs_grad = has_grad and value.requires_grad
            denormal = rounded_fraction(denormals.get(id(value), 0.0))
            content = self._contents.get(address, -address), value.storage_offset()
            reach = self.reach.of(value, address) if needs_grad else OTHERS
            layout = tuple(value.shape), value.stride(), value.dtype
            return TensorSpec(*layout, needs_grad, self._writers.get(address, -1), denormal, content, reach)
        if type(value) in (list, tuple):
            return tuple(self._spec(each, has_grad, denormals) for each in value)
        return value if type(value) in PLAIN_TYPES else OPAQUE

    def _key(self, value: Any) -> Any:
        """Replace a tensor's source by the operator that wrote it, so that equal layers are one call; keep copies."""
        if isinstance(value, TensorSpec):
            source = self.calls[value.source] if value.source >= 0 else None
            writer = source.index if source is not None and source.name in COPYING else source and source.func
            return (*value._replace(source=-1, content=(0, 0)), writer)
        return tuple(map(self._key, value)) if isinstance(value, tuple) else value


def flat(value: Any) -> list[Any]:
    """Return the leaves of nested lists, tuples and dicts; a ``TensorSpec`` is a leaf."""
    if type(value) is dict:
        value = list(value.values())
    if type(value) in (list, tuple):
        return [leaf for each in value for leaf in flat(each)]
    return [value]


def specs_in(value: Any) -> list[TensorSpec]:
    """Return the tensors' specs among nested arguments, or in a bound function."""
    return [leaf for leaf in flat(value) if isinstance(leaf, TensorSpec)]
