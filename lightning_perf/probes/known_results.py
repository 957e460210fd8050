"""Find operators of a step whose results nobody uses or that were known before: in the step, in each step or epoch.

Each content of a storage gets a number: equal operators on equal contents have equal results (global value
numbering: Alpern, Wegman and Zadeck, POPL 1988). Their origins go along: trained parameters, the batch, random
generators, and tensors of the module that do not change. No tensor is kept alive.
"""

import threading
import weakref
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from lightning_perf.interrupts import error_text
from lightning_perf.records import KnownResults

from . import module_walk, plain
from .clock import now_ns
from .code_lines import instruction, recomputing_line, user_lines
from .known_result_calls import BATCH, N_ORIGINS, RANDOM, TRAINED, UNKNOWN, Call, Pass, StepCalls
from .plain import is_plain_tensor, tensors_in, visits
from .replay.calls import flat

_N_COMPARED = 1024  # elements of each tensor
_LEAST_NS = 5_000
"""Time of an operator from which on its line is found out, which takes a few times as long."""

_PLAIN = (type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
_COPIES = ("aten::clone", "aten::copy_")  # to be written to
_RUNNING = slice(3, 5)  # statistics, which batch norm writes but does not read when it trains
_IS_TRAINING = 5
_BATCH_NORMS = ("aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::_native_batch_norm_legit")
_LIKE = {f"aten::{name}" for value in ("zeros", "ones", "full") for name in (f"{value}_like", f"new_{value}")}
_DETACH = "aten::detach"
_SOLVE = "aten::_linalg_solve_ex"
_OVERWRITING = ("aten::fill_", "aten::zero_", "aten::copy_")

_next_number: Any = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]
_weak_reference: Any = StorageWeakRef  # torch's own class has no types


class _Function(NamedTuple):
    """An operator: its name, the places of arguments that it writes to, and whether it draws random numbers."""

    name: str
    written: tuple[int, ...]
    written_names: tuple[str, ...]
    is_random: bool


class _Content(NamedTuple):
    """What a storage holds. ``call`` is the operator of this step that wrote it; None for what was there before."""

    storage: Any  # while it is held, no new storage has the same address
    number: int
    origin: int
    call: Call | None = None


class ResultTracker:
    """Follows the operators of one step.

    ``batch`` is what the step gets. ``is_timed``: weights are nanoseconds. ``failure`` is why operators are not
    followed; empty normally.
    """

    def __init__(self, module: nn.Module, batch: Any, is_timed: bool = True) -> None:
        self.failure = ""
        self._step = StepCalls(is_timed)
        self._numbers = count(1)
        self._contents: dict[int, _Content] = {}
        self._results: dict[Any, tuple[tuple[int, ...], Call]] = {}
        self._functions: dict[Any, _Function] = {}
        self._by_node: dict[int, Call] = {}
        self._passes: dict[int, Pass] = {}
        self._n_pauses = 0
        self._read = 0  # origin of numbers that were read from tensors
        self._origin_of_number: dict[Any, int] = {}
        self._instruction = 0, 0  # of the last operator
        self._thread = threading.get_ident()
        self._trained: list[weakref.ref[torch.Tensor]] = []
        self._fixed: list[tuple[weakref.ref[torch.Tensor], torch.Tensor]] = []
        for tensor in _tensors_of(module):
            if tensor.requires_grad:
                self._trained.append(weakref.ref(tensor))
                self._set(tensor, TRAINED)
            elif (part := _part(tensor)) is not None:
                self._set(tensor, 1 << (N_ORIGINS + len(self._fixed)))
                self._fixed.append((weakref.ref(tensor), part.clone()))
        for tensor in tensors_in(batch, left=visits()):
            if _is_followed(tensor):
                self._set(tensor, BATCH)

    def resume(self) -> None:
        """Go on after operators that were not seen, e.g. an optimizer's step: parameters may have changed."""
        self._n_pauses += 1
        for reference in self._trained:
            if (tensor := reference()) is not None:
                self._set(tensor, TRAINED)

    def add(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any, weight: int, is_view: bool) -> None:
        """Add an operator that was called; ``weight`` is its time, or its operations where it cannot be timed."""
        node = torch._C._current_autograd_node()
        if not self.failure:
            try:
                if node is not None:  # includes what checkpointing computes again
                    self._add_backward(node, weight, 0 if is_view else sum(map(_n_bytes, _tensors(out))))
                elif threading.get_ident() == self._thread:
                    self._add(func, args, kwargs, out, weight, is_view)
            except Exception as error:  # noqa: BLE001 - recorded; the step goes on
                self.failure = error_text(error)

    def _add(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any, weight: int, is_view: bool
    ) -> None:
        inputs = _tensors((args, kwargs))
        outs = _tensors(out)
        if is_view:
            # Whatever the user does then, e.g. a metric of NumPy; autograd detaches the results that it saves.
            if str(func._schema.name) == _DETACH and instruction() != self._instruction:
                self._use(inputs)
            known = {_address(tensor) for tensor in inputs}
            for tensor in outs:
                if _address(tensor) not in known:  # allocated, with any content
                    self._set(tensor, 0)
            return
        function = self._function(func)
        given: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
        trains = function.name in _BATCH_NORMS and len(args) > _IS_TRAINING and bool(args[_IS_TRAINING])
        if trains:
            for place in range(_RUNNING.start, _RUNNING.stop):
                given.pop(place)
        written = [given[place] for place in (*function.written, *function.written_names) if place in given]
        written = _tensors(written)
        if function.name in _OVERWRITING and written and _is_whole(written[0]):
            given.pop(0)
        if function.name in _LIKE:
            given[0] = str((outs[0].shape, outs[0].dtype)) if outs else None  # reads no content
            self._use(inputs if inputs[0].numel() == 1 else ())  # a backward pass begins so
        read = _tensors(list(given.values()))
        origin = self._origin(function, given, read) | (RANDOM if trains or function.is_random else 0)
        key = object() if function.is_random else (func, tuple((k, self._key(v)) for k, v in given.items()))
        numbers, first = self._results.get(key, ((), None))
        weight -= self._add_factorization(function, args, weight)
        call = Call(weight, origin, first, *(user_lines() if weight >= _LEAST_NS and outs else ()))
        call.is_listed = bool(read) and function.name not in _COPIES
        call.producers = tuple(one for tensor in read if (one := self._content(tensor).call) is not None)
        # Also used: what is read as a number, or written to a tensor that was there before.
        call.is_used = not outs or any(self._content(tensor).call is None for tensor in written)
        self._step.add(call)
        self._instruction = instruction()
        changed = {id(tensor): tensor for tensor in (*outs, *written)}.values()
        if first is None:
            numbers = tuple(next(self._numbers) for _ in changed)
            self._results[key] = numbers, call
        if type(out) in (int, float):
            self._read |= origin
            self._origin_of_number[out] = origin
        if origin & (TRAINED | RANDOM | UNKNOWN):
            self._keep(read)
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
            # Autograd made this call's node just before this method was called.
            self._by_node[_next_number() - 1] = call
            call.has_grad = True
        for tensor, number in zip(changed, numbers, strict=True):
            self._set(tensor, origin, number, call)

    def _add_factorization(self, function: _Function, args: Sequence[Any], weight: int) -> int:
        """Add the factorization that a solution of a linear system includes; return its time.

        It depends on the matrix only. It is run once more to be timed, on a CPU.
        """
        matrix = args[0] if function.name == _SOLVE else None
        if matrix is None or not self._step.is_timed or matrix.device.type != "cpu" or weight < _LEAST_NS:
            return 0
        begin = now_ns()
        torch.linalg.lu_factor_ex(matrix.detach())
        found = Call(min(weight, now_ns() - begin), self._content(matrix).origin, None, *user_lines())
        found.is_used = True
        self._step.add(found)
        return found.weight

    def _add_backward(self, node: Any, weight: int, n_bytes: int) -> None:
        self._step.backward_weight += weight
        line = recomputing_line() if torch.is_grad_enabled() else None
        if line is not None:
            self._step.add_recomputed(weight, n_bytes, line)
            return
        number = torch._C._current_graph_task_id()
        one = self._passes.get(number)
        if one is None:
            one = self._passes[number] = Pass(user_lines()[0], self._n_pauses)
        one.accumulates |= hasattr(node, "variable")
        if (owner := self._by_node.get(node._sequence_nr())) is not None:
            owner.passes[one] = owner.passes.get(one, 0) + weight

    def end(self) -> None:
        """End the step: results that are still there are used by something."""
        for content in self._contents.values():
            if content.call is not None and not content.storage.expired():
                content.call.is_used = True
        self._step.find_used()
        self._contents.clear()
        self._results.clear()

    def found(self) -> tuple[KnownResults, ...]:
        """Return what was found, which may wait for the device. To be called some steps later, and again."""
        changed = sum(1 << (N_ORIGINS + place) for place, (now, before) in enumerate(self._fixed)
                      if not _is_same(now(), before))  # fmt: skip
        return self._step.records(changed)

    def _use(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            if (call := self._content(tensor).call) is not None:
                call.is_used = True

    def _keep(self, read: Iterable[torch.Tensor]) -> None:
        """Count the bytes of inputs that depend on the batch only, but are computed."""
        for tensor in read:
            content = self._contents.get(_address(tensor))
            if content is not None and content.call is not None and content.origin & (2**N_ORIGINS - 1) == BATCH:
                self._step.frozen_bytes[content.number] = _n_bytes(tensor)

    def _function(self, func: Any) -> _Function:
        found = self._functions.get(func)
        if found is None:
            schema = func._schema
            written = [(place, argument.name) for place, argument in enumerate(schema.arguments)
                       if argument.alias_info is not None and argument.alias_info.is_write]  # fmt: skip
            found = self._functions[func] = _Function(
                str(schema.name),
                tuple(place for place, _ in written),
                tuple(name for _, name in written),
                torch.Tag.nondeterministic_seeded in func.tags,
            )
        return found

    def _origin(self, function: _Function, given: dict[Any, Any], read: Sequence[torch.Tensor]) -> int:
        origin = self._read if not read else 0
        for tensor in read:
            origin |= self._content(tensor).origin
        for value in given.values():
            if type(value) in (int, float):
                origin |= self._origin_of_number.get(value, 0)
        if len(read) < sum(isinstance(value, torch.Tensor) for value in flat(list(given.values()))):
            origin |= UNKNOWN  # a sparse tensor, or one of a subclass
        return origin

    def _key(self, value: Any) -> Any:
        if _is_followed(value):
            number = self._content(value).number
            return number, value.storage_offset(), tuple(value.shape), value.stride(), value.dtype
        if type(value) in (list, tuple):
            return tuple(map(self._key, value))
        return (type(value), value) if type(value) in _PLAIN else object()

    def _content(self, tensor: torch.Tensor) -> _Content:
        found = self._contents.get(_address(tensor))
        return found if found is not None else self._set(tensor, UNKNOWN)

    def _set(self, tensor: torch.Tensor, origin: int, number: int | None = None, call: Call | None = None) -> _Content:
        """Note what a tensor's storage holds now; ``number`` is None for a content that is equal to no other."""
        storage = _weak_reference(tensor.untyped_storage())
        content = _Content(storage, number or next(self._numbers), origin, call)
        self._contents[_address(tensor)] = content
        return content


def _tensors_of(module: nn.Module) -> Iterable[torch.Tensor]:
    """Return parameters, buffers and plain tensors that modules have as attributes."""
    yield from _tensors([*module_walk.parameters(module), *module_walk.buffers(module)])
    for each in module_walk.modules(module):
        yield from (value for value in plain.attributes(each).values() if _is_followed(value))


def _part(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return up to ``_N_COMPARED`` evenly spaced elements; None where they cannot be viewed."""
    if tensor.layout is not torch.strided or not tensor.is_contiguous() or not tensor.numel():
        return None
    return tensor.detach().view(-1)[:: -(-tensor.numel() // _N_COMPARED)]


def _is_same(tensor: torch.Tensor | None, before: torch.Tensor) -> bool:
    part = _part(tensor) if tensor is not None else None
    return part is not None and part.shape == before.shape and bool(torch.equal(part, before))


def _is_whole(tensor: torch.Tensor) -> bool:
    return bool(tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes())


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in flat(value) if _is_followed(leaf)]


def _is_followed(value: Any) -> bool:
    """Return whether a value is a tensor with a storage."""
    return is_plain_tensor(value) and value.layout is torch.strided


def _n_bytes(tensor: torch.Tensor) -> int:
    return plain.n_elements(tensor) * tensor.element_size()


def _address(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
