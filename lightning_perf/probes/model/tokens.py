"""Read how many tokens a batch has, and how much of it is padding.

Shapes are read in each step; values only in a few batches, and never so that the host waits for a device.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._python_dispatch import _disable_current_modes

from lightning_perf.interrupts import raise_if_from_signal
from lightning_perf.probes import plain
from lightning_perf.probes.base import Probe, RunContext
from lightning_perf.records import Padding

from . import module_walk

ID_KEYS = ("input_ids", "token_ids", "tokens", "src_tokens", "decoder_input_ids")
MASK_KEY = "attention_mask"
LENGTH_KEYS = ("lengths", "seq_lens", "input_lengths", "src_lengths")
OFFSET_KEYS = ("cu_seq_lens_q", "cu_seqlens_q", "cu_seq_lens", "cu_seqlens")
"""Keys of batches: Hugging Face's, fairseq's and those of flash-attention's packed sequences."""

MAX_BATCHES, MAX_SEQUENCES = 64, 2**17
"""Batches kept, evenly spaced over the run, and the sequences in them."""

_MISSES = 8
"""After so many batches in a row without padding to count, the steps between counted batches double."""

_ID_DTYPES = (torch.int64, torch.int32)
_MASK_DTYPES = (torch.bool, torch.uint8, *_ID_DTYPES)  # a mask of floats is added to attention's scores
_FLOAT_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_DEPTH = 4
_MOST_PLACES, _MOST_COMPARED = 4, 8
"""Tensors of a batch that may be sequences or lengths, and items whose padding is read."""


class EmbeddingInfo(NamedTuple):
    """Embeddings of a model. If there are any, a batch of integers is taken for tokens.

    ``padding_id`` is None without a ``padding_idx``, or if embeddings differ in it.
    """

    has_embedding: bool = False
    padding_id: int | None = None


class TensorPlace(NamedTuple):
    """The keys that lead to a tensor in a batch, and its dtype and shape."""

    path: tuple[Any, ...]
    dtype: Any
    shape: tuple[int, ...]

    @property
    def key(self) -> Any:
        """The last key that is a name."""
        return next((key for key in reversed(self.path) if type(key) is str), None)

    @property
    def owner(self) -> tuple[Any, ...]:
        """The other keys: the same for tokens and their mask."""
        return tuple(key for key in self.path if key != self.key)


class Layout(NamedTuple):
    """Where batches of one structure have their tokens; None if unknown.

    Attributes:
        tokens: A tensor with one element per token, or a packed sequence.
        padding: A mask, the sequences' lengths, or the tokens themselves.
        padding_id: Its value at a padded place.
        basis: How padding is recognized, as in ``Padding.basis``; why it is not if `padding` is None.
        dim: The dimension of ``tokens`` that sequences are padded in.
    """

    tokens: TensorPlace | None = None
    padding: TensorPlace | None = None
    padding_id: int = 0
    basis: str = "no batch with tokens was found"
    dim: int = -1


_LENGTHS = "lengths"
_PACKED = "packed sequences have no padding"
_UNKNOWN = "batches have no attention_mask or lengths that are recognized, and no embedding has a padding_idx"


def layouts_of(batch: Any, embeddings: EmbeddingInfo) -> list[Layout]:
    """Return where a batch has its tokens: one layout, or several, e.g. of queries and of passages."""
    places = list(_places(batch, (), _DEPTH, plain.search_limit()))
    packed = next((one for one in places if one.dtype is PackedSequence), None)
    if packed is not None:
        return [Layout(packed, basis=_PACKED)]
    grids = [one for one in places if len(one.shape) >= 2]
    named = [[one for one in grids if one.key == key and one.dtype in _ID_DTYPES] for key in ID_KEYS]
    unnamed = [one for one in places[:1] if embeddings.has_embedding and one in grids and one.dtype in _ID_DTYPES]
    flat = [one for one in _masks(grids) if len(one.shape) == 2]  # others also say which tokens see which
    tokens = next((found for found in (*named, flat, unnamed) if found), [])
    if any(one.key in OFFSET_KEYS for one in places):
        return [Layout(one, basis=_PACKED) for one in tokens] or [Layout()]
    if len(tokens) > 1:  # each has a mask of its own
        return [_layout_of(one, [each for each in places if each.owner == one.owner], embeddings) for one in tokens]
    return [_layout_of(one, places, embeddings) for one in tokens] or [Layout()]


def _layout_of(tokens: TensorPlace, places: list[TensorPlace], embeddings: EmbeddingInfo) -> Layout:
    for one in _masks(places):
        if one.shape == tokens.shape:
            return Layout(tokens, one, basis=MASK_KEY)
    for one in places:
        if one.key in LENGTH_KEYS and one.dtype in _ID_DTYPES and one.shape == tokens.shape[:1]:
            return Layout(tokens, one, basis=_LENGTHS)
    if embeddings.padding_id is None:
        return Layout(tokens, basis=_UNKNOWN)
    return Layout(tokens, tokens, embeddings.padding_id, f"padding id {embeddings.padding_id}")


def _masks(places: list[TensorPlace]) -> list[TensorPlace]:
    return [one for one in places if one.key == MASK_KEY and one.dtype in _MASK_DTYPES and len(one.shape) >= 2]


def layout_by_values(batch: Any, layout: Layout) -> Layout:
    """Return the layout of a CPU batch whose values show sequences and their lengths; else ``layout`` unchanged.

    Lengths are integers, one per item: from there on, each item holds only the padding value.
    """
    places = list(_places(batch, (), _DEPTH, plain.search_limit()))
    floats = [one for one in places if len(one.shape) >= 2 and one.dtype in _FLOAT_DTYPES]
    padded = [layout.tokens] if layout.tokens is not None else floats
    lengths = [one for one in places if len(one.shape) == 1 and one.dtype in _ID_DTYPES]
    for tokens in padded[:_MOST_PLACES]:
        for one in lengths[:_MOST_PLACES]:
            if one.shape != tokens.shape[:1] or 0 in tokens.shape:
                continue
            dim = _padded_dim(plain.item_at(batch, tokens.path), plain.item_at(batch, one.path))
            if dim is not None:
                return Layout(tokens, one, basis=_LENGTHS, dim=dim)
    return layout


def padded_length(tensors: Sequence[torch.Tensor]) -> int:
    """Return the length to which a batch's sequences of floats are padded; 0 if not known."""
    found = layout_by_values(list(tensors), Layout())
    return found.tokens.shape[found.dim] if found.tokens is not None else 0


def _padded_dim(items: Any, lengths: Any) -> int | None:
    """Return the dimension in which items have these lengths, to judge by the shortest ones; None if in none."""
    for one in (items, lengths):
        if not plain.is_plain_tensor(one) or one.device.type != "cpu" or one.layout is not torch.strided:
            return None
    with torch.no_grad(), plain.without_overrides(), _disable_current_modes():
        least, most = (int(each) for each in (lengths.min(), lengths.max()))
        places = lengths.argsort()[:_MOST_COMPARED]
        some, ends = items[places], lengths[places].tolist()
        for dim in range(1, items.dim()):
            if not 1 <= least < most <= items.shape[dim] or least > items.shape[dim] - 2:
                continue
            each = [item.movedim(dim - 1, 0) for item in some]
            padding = each[0][-1].flatten()[0]
            is_padded = all(bool((item[end:] == padding).all()) for item, end in zip(each, ends, strict=True))
            if is_padded and all(bool((item[end - 1] != padding).any()) for item, end in zip(each, ends, strict=True)):
                return dim
    return None


def _places(value: Any, path: tuple[Any, ...], depth: int, left: Iterator[int]) -> Iterator[TensorPlace]:
    if next(left, None) is None:
        return
    if type(value) is PackedSequence:
        shape = plain.shape_of(tuple.__getitem__(value, 0))
        if shape:
            yield TensorPlace(path, PackedSequence, shape[:1])
        return
    shape = plain.shape_of(value)
    if shape is not None:
        dtype = plain.field(value, "dtype") if plain.is_plain_tensor(value) else None
        yield TensorPlace(path, dtype, shape)
        return
    for key, item in (plain.items_of(value, plain.MAX_VISITED) or ()) if depth else ():
        if type(key) in (str, int):  # comparing keys of other types could run user code
            yield from _places(item, (*path, key), depth - 1, left)


class BatchUnits:
    """Reads the samples and tokens of batches: by functions of the user, where given."""

    def __init__(self) -> None:
        self.embeddings = EmbeddingInfo()
        self._functions: Mapping[str, Callable[[Any], Any]] = {}
        self._on_fail: Callable[[str, Exception], None] = lambda name, error: None
        self._failed: set[str] = set()

    def use(
        self, functions: Mapping[str, Callable[[Any], Any] | None], on_fail: Callable[[str, Exception], None]
    ) -> None:
        """Use functions by the name of their option; ``on_fail`` gets that name and the error of one that raises."""
        self._functions = {name: function for name, function in functions.items() if function is not None}
        self._on_fail = on_fail

    def sizes(self, batch: Any) -> Callable[[Any], int]:
        """Return a function that reads the samples of batches with this structure; -1 if unknown."""
        return self._guarded_function("batch_size_fn") or plain.size_reader(batch)

    def tokens(self, batch: Any) -> Callable[[Any], int] | None:
        """Return a function that reads the tokens of batches with this structure, padding included; None without."""
        function = self._guarded_function("tokens_fn")
        if function is not None:
            return function
        paths = [one.tokens.path for one in layouts_of(batch, self.embeddings) if one.tokens is not None]
        return (lambda one: sum(_n_tokens(plain.item_at(one, path)) for path in paths)) if paths else None

    def _guarded_function(self, name: str) -> Callable[[Any], int] | None:
        function = self._functions.get(name)
        return None if function is None else lambda batch: self._call_guarded(name, function, batch)

    def _call_guarded(self, name: str, function: Callable[[Any], Any], batch: Any) -> int:
        if name in self._failed:
            return -1
        try:
            return _as_count(name, function(batch))
        except Exception as error:  # noqa: BLE001 - of the user's function: reported, and not called again
            raise_if_from_signal(error)
            self._failed.add(name)
            self._on_fail(name, error)
            return -1


class UnitTotals:
    """Sums of the samples and the tokens of steps; None once a step's are unknown."""

    def __init__(self) -> None:
        self.totals: list[int | None] = [0, 0]

    def add(self, units: NDArray[np.int64]) -> None:
        """Add steps; shape (steps, 2), -1 for unknown."""
        self.totals = [
            None if before is None or (column < 0).any() else before + int(column.sum())
            for before, column in zip(self.totals, units.T, strict=True)
        ]


def _n_tokens(value: Any) -> int:
    if type(value) is PackedSequence:
        value = tuple.__getitem__(value, 0)
        return plain.shape_of(value)[0]  # type: ignore[index]
    shape = plain.shape_of(value)
    if shape is None:
        raise TypeError(f"{type(value).__name__} is neither a plain tensor nor a numpy array")
    return math.prod(shape)


def _as_count(name: str, value: Any) -> int:
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool) and value >= 0:
        return int(value)
    # Not the value of a tensor: reading it could wait for the device.
    given = value if isinstance(value, (int, float)) else type(value).__name__
    raise TypeError(f"{name} returned {given}, expected a whole number of at least 0")


class TokensProbe(Probe):
    """Counts the padding of a few batches of a fit; in all stages, sets how samples and tokens are counted."""

    name = "tokens"
    field, reason = "padding", "no batch was counted"
    after = ("steps", "settings")
    next_step = 0

    def __init__(self, run: RunContext) -> None:
        self._loop, self._units = run.loop, run.loop.units
        self._every = 1
        self._n_missed = 0  # batches without tokens or padding, one after the other
        self._counted: list[tuple[int, list[tuple[int, torch.Tensor]]]] = []  # step, and of each tensor with tokens
        # the padded length and the tokens of each sequence
        self._basis = ""
        self._by_values: Layout | None = None  # of an earlier batch
        functions = {"batch_size_fn": run.options.batch_size_fn, "tokens_fn": run.options.tokens_fn}
        run.loop.units.use(functions, run.probes.switch_off)

    def loops_ready(self, run: RunContext) -> None:
        """Read the padding id from the model."""
        embeddings = [one for one in module_walk.modules(run.pl_module) if plain.is_a(one, nn.Embedding)]
        padding = {index for one in embeddings if type(index := plain.stored(one, "padding_idx")) is int}
        self._units.embeddings = EmbeddingInfo(bool(embeddings), padding.pop() if len(padding) == 1 else None)

    def step_begins(self, batch: Any) -> None:
        """Count the tokens of each sequence of a batch, on its device."""
        step = self._loop.main.n_steps
        self.next_step = step + self._every
        if self._loop.is_profiling:
            return
        first, *others = layouts = layouts_of(batch, self._units.embeddings)
        if first.padding is None and first.basis != _PACKED and not others:
            layouts = [self._layout_by_values(batch, first)]
        lengths = [_lengths(batch, one) for one in layouts]
        counted = [one for one in lengths if one is not None]
        self.missing["padding"] = "counted batches are read when an epoch ends"
        if None in lengths:  # as in most trainings: check ever more rarely
            self.missing["padding"] = layouts[lengths.index(None)].basis
            self._n_missed += 1
            self.next_step = step + 2 ** max(0, self._n_missed - _MISSES)
            return
        self._n_missed = 0
        self._basis = layouts[0].basis
        self._counted.append((step, counted))
        n_sequences = sum(len(lengths) for _, each in self._counted for _, lengths in each)
        if len(self._counted) >= MAX_BATCHES or n_sequences >= MAX_SEQUENCES:
            self._every *= 2
            self._counted = [one for one in self._counted if one[0] % self._every == 0]
            self.next_step = -(-(step + 1) // self._every) * self._every

    def _layout_by_values(self, batch: Any, layout: Layout) -> Layout:
        """Return the layout of an earlier batch with these tensors, or search this one: full ones show no padding."""
        found = self._by_values
        if found is not None:
            places = {one.path: one for one in _places(batch, (), _DEPTH, plain.search_limit())}
            tokens, lengths = (places.get(one.path) for one in (found.tokens, found.padding) if one is not None)
            is_same = tokens is not None and found.tokens is not None and len(tokens.shape) == len(found.tokens.shape)
            if is_same and tokens is not None and lengths is not None and lengths.shape == tokens.shape[:1]:
                return found
        found = layout_by_values(batch, layout)
        if found.padding is not None:
            self._by_values = found
        return found

    def epoch_ends(self) -> None:
        """Read what was counted, which may wait for the device: only between epochs."""
        self._counted = [(step, [(width, lengths.cpu()) for width, lengths in each]) for step, each in self._counted]

    def before_report(self, is_last: bool) -> None:
        self.epoch_ends()

    def record(self) -> Padding | None:
        """Return the padding that was counted; on a device, up to the end of the last epoch."""
        batches = [each for _, each in self._counted if all(lengths.device.type == "cpu" for _, lengths in each)]
        if not batches:
            return None
        known = [(width, lengths.numpy()) for each in batches for width, lengths in each]
        if any(int(lengths.max()) > width for width, lengths in known):
            self.missing["padding"] = "lengths in the batch are greater than its sequences: they are of another tensor"
            return None
        self.missing.pop("padding", None)
        padded = sum(width * len(lengths) for width, lengths in known)
        trimmed = sum(int(lengths.max()) * len(lengths) for _, lengths in known)
        is_single = len(known) == len(batches)  # an order by the lengths in one tensor is none by those in another
        return Padding(
            n_batches=len(batches),
            n_tokens=padded,
            n_padding=padded - sum(int(lengths.sum()) for _, lengths in known),
            trimmed_tokens=trimmed,
            bucketed_tokens=_bucketed([lengths for _, lengths in known]) if is_single else trimmed,
            basis=self._basis,
        )


def _lengths(batch: Any, layout: Layout) -> tuple[int, torch.Tensor] | None:
    """Return the padded length of a batch's sequences and a tensor with the tokens of each; None if unknown."""
    if layout.tokens is None or layout.padding is None:
        return None
    tokens, marks = (plain.item_at(batch, place.path) for place in (layout.tokens, layout.padding))
    shape = plain.shape_of(tokens)
    if shape is None or not plain.is_plain_tensor(marks) or 0 in shape:
        return None
    width = shape[layout.dim]
    with torch.no_grad(), plain.without_overrides(), _disable_current_modes():
        if layout.basis == _LENGTHS:
            return width, marks.detach().clone()
        return width, torch.count_nonzero(marks.detach().reshape(-1, width) != layout.padding_id, dim=-1)


def _bucketed(batches: list[NDArray[np.int64]]) -> int:
    """Return the tokens of these sequences, padding included, in batches of similar lengths and the same sizes."""
    ordered = np.sort(np.concatenate(batches))
    ends = np.cumsum([len(lengths) for lengths in batches])
    return sum(int(ordered[end - 1]) * len(lengths) for end, lengths in zip(ends, batches, strict=True))
