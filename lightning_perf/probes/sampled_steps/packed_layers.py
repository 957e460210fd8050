"""Recurrent layers that get packed sequences: what they run on, how long they take, and what is read of their results.

On a CPU, oneDNN's fused kernel takes only padded batches: https://github.com/pytorch/pytorch/issues/149194.
"""

import sys
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from lightning_perf.interrupts import error_text
from lightning_perf.probes.model.module_walk import named_modules
from lightning_perf.probes.plain import is_plain_tensor, storage_address

from .code_lines import user_site
from .tracing import ModuleWatch

Use: TypeAlias = Literal["last", "padded", "packed"]
"""What is read of the results: each sequence's last state, states padded again, or states as they are."""

_PACK = "aten::_pack_padded_sequence"
_KINDS = (nn.LSTM, nn.GRU, nn.RNN)
_OPTIONS = ("input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout")
_FRAMES = 8  # from an operator up to the function of torch that calls it

_weak_reference: Any = StorageWeakRef  # torch's own class has no types


class Layer(NamedTuple):
    """A recurrent layer in one direction, without its values; ``mode`` is torch's name of the cell.

    ``options`` are the arguments that make such a layer. ``weights`` are shapes, and whether each gets a gradient.
    """

    kind: type
    mode: str
    options: tuple[tuple[str, Any], ...]
    weights: tuple[tuple[tuple[int, ...], bool], ...]
    is_training: bool
    device: torch.device


class Packing(NamedTuple):
    """Packed sequences: sizes of the batch by step, steps of the padded batch, and layout of the data.

    ``is_made_here``: it was packed in this step. ``is_sorted``: the sequences were in order of their lengths before.
    """

    batch_sizes: tuple[int, ...]
    n_steps: int
    is_made_here: bool
    is_sorted: bool
    n_features: int
    dtype: torch.dtype
    needs_grad: bool


@dataclass(slots=True, eq=False)
class PackedRun:
    """One call of a layer with packed sequences.

    ``ns`` and ``backward_ns`` are of its operators, which made the autograd nodes from ``begin`` to ``end``. ``others``
    says that something is read that a padded batch would not give: states of cells, or the last ones of lower layers.
    """

    layer: Layer
    packing: Packing
    site: str
    begin: int
    end: int = 0
    ns: int = 0
    backward_ns: int = 0
    uses: set[Use] = field(default_factory=set)
    others: bool = False


class _Result(NamedTuple):
    """A result of a run; ``first`` is where the last layer's states begin in it."""

    run: PackedRun
    name: str
    storage: Any
    first: int = 0


class PackedLayers:
    """Follows recurrent layers in one direction that get packed sequences in one step; keeps no tensor alive.

    The backward direction of others begins at the end of each sequence, where a padded batch has padding.
    """

    def __init__(self) -> None:
        self.failure = ""
        self._runs: list[PackedRun] = []
        self._open: PackedRun | None = None
        self._modules: dict[str, Any] = {}
        self._watch: ModuleWatch | None = None
        self._packed: dict[int, tuple[Any, int]] = {}  # by address: steps of the padded batch
        self._results: dict[int, _Result] = {}  # by address; freed ones until another result has the address

    def watch(self, root: nn.Module) -> None:
        """Follow the layers of a model, between ``install`` and ``remove``."""
        found = {path: module for path, module in named_modules(root) if type(module) in _KINDS}
        # Over padded batches, torch warns of projections, which oneDNN does not know.
        is_followed = {path: not (module.bidirectional or module.proj_size) for path, module in found.items()}
        self._modules = {path: module for path, module in found.items() if is_followed[path]}
        self._watch = ModuleWatch(self._modules, self._enters, self._leaves) if self._modules else None

    def install(self) -> None:
        if self._watch is not None:
            self._watch.install()

    def remove(self) -> None:
        if self._watch is not None:
            self._watch.remove()

    @property
    def runs(self) -> list[PackedRun]:
        """The runs of which a padded batch would give all that is read; asked after the step."""
        for result in self._results.values():
            if not result.storage.expired():  # still held: code that is no operator may read it
                self._note(result, 0, "packed")
        return [] if self.failure else [run for run in self._runs if run.uses and not run.others]

    def add(self, node: Any, name: str, tensors: Iterable[Any], is_view: bool, out: Any, ns: int) -> None:
        """Add an operator of ``ns`` nanoseconds that reads ``tensors``; ``node`` is None in the forward pass."""
        if not self._modules:
            return
        for value in tensors if self._results else ():
            result = self._results.get(storage_address(value)) if is_plain_tensor(value) else None
            if result is None or result.storage.expired() or (node is not None and result.name != "cell"):
                continue
            if not is_view or name == "aten::detach" or result.name == "cell":
                self._note(result, value.storage_offset(), "padded" if _is_padding() else "packed")
        if node is not None:
            number = node._sequence_nr()
            place = bisect_right(self._runs, number, key=lambda run: run.begin) - 1
            if place >= 0 and number < self._runs[place].end:
                self._runs[place].backward_ns += ns
            return
        if name == _PACK:
            (padded, lengths), data = tensors, out[0]
            n_steps = padded.shape[padded.shape[0] == len(lengths)]  # the other dimension
            self._packed[storage_address(data)] = _weak_reference(data.untyped_storage()), n_steps
        if self._open is not None:
            self._open.ns += ns

    def _note(self, result: _Result, offset: int, use: Use) -> None:
        """Note that a tensor of a result is read, which begins at ``offset``."""
        if result.name == "output":
            result.run.uses.add(use)
        elif result.name == "hidden" and offset >= result.first:
            result.run.uses.add("last")
        else:
            result.run.others = True

    def _enters(self, path: str, args: Any, kwargs: Any) -> None:
        if torch._C._current_autograd_node() is not None or self.failure:
            return  # activation checkpointing computes it again
        try:
            given = args[0] if args else (kwargs or {}).get("input")
            if type(given) is PackedSequence and not torch.is_autocast_enabled(given.data.device.type):
                begin = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
                module = self._modules[path]
                self._open = PackedRun(_layer_of(module, given.data), self._packing_of(given), user_site(), begin)
        except Exception as error:  # noqa: BLE001 - within the user's forward: nothing is found
            self.failure = error_text(error)

    def _packing_of(self, given: PackedSequence) -> Packing:
        data = given.data
        sizes = tuple(torch._C.TensorBase.tolist(given.batch_sizes))  # not the user's, or ours, on `Tensor`
        storage, n_steps = self._packed.get(storage_address(data), (None, len(sizes)))
        is_made_here = storage is not None and not storage.expired()
        needs_grad = data.requires_grad and torch.is_grad_enabled()
        is_sorted = given.sorted_indices is None
        steps = n_steps if is_made_here else len(sizes)
        return Packing(sizes, steps, is_made_here, is_sorted, data.shape[-1], data.dtype, needs_grad)

    def _leaves(self, path: str, output: Any) -> None:
        run, self._open = self._open, None
        if run is None or type(output) is not tuple or self.failure:
            return
        try:
            run.end = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
            states, last = output
            hidden, *cell = last if type(last) is tuple else (last,)
            self._runs.append(run)
            self._follow(run, "output", states.data)
            self._follow(run, "hidden", hidden, hidden.stride(0) * (hidden.shape[0] - 1))
            for each in cell:
                self._follow(run, "cell", each)
        except Exception as error:  # noqa: BLE001 - within the user's forward: nothing is found
            self.failure = error_text(error)

    def _follow(self, run: PackedRun, name: str, tensor: torch.Tensor, first: int = 0) -> None:
        storage = _weak_reference(tensor.untyped_storage())
        self._results[storage_address(tensor)] = _Result(run, name, storage, int(tensor.storage_offset()) + first)


def _layer_of(module: Any, data: torch.Tensor) -> Layer:
    options = [(name, getattr(module, name)) for name in _OPTIONS]
    if type(module) is nn.RNN:
        options.append(("nonlinearity", module.nonlinearity))
    has_grad = torch.is_grad_enabled()
    weights = tuple((tuple(one.shape), has_grad and one.requires_grad) for one in module._flat_weights)
    return Layer(type(module), module.mode, tuple(options), weights, module.training, data.device)


def _is_padding() -> bool:
    """Return whether ``pad_packed_sequence`` calls this operator."""
    frame = sys._getframe(1)
    for _ in range(_FRAMES):
        if frame is None or frame.f_code is pad_packed_sequence.__code__:
            break
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None and frame.f_code is pad_packed_sequence.__code__
