"""Find operators of a step whose results are unused, or already known from this step, each step or each epoch.

Each content of a storage gets a number: equal operators on equal contents have equal results (global value
numbering: Alpern, Wegman and Zadeck, POPL 1988). Each content also has its origins: trained parameters, the batch,
random generators, and tensors of the module that do not change. No tensor is kept alive.
"""

import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from lightning_perf.dataset_contents import python_random_states
from lightning_perf.interrupts import error_text
from lightning_perf.probes import plain
from lightning_perf.probes.clock import now_ns
from lightning_perf.probes.plain import search_limit, tensors_in
from lightning_perf.probes.replay.backward import accumulating_parameter
from lightning_perf.probes.replay.calls import PLAIN_TYPES, flat
from lightning_perf.records import KnownResults

from .code_lines import instruction, is_logging, lines_above, recomputing_line, user_lines
from .dense_tensors import dense_tensors, dense_tensors_of, is_dense, storage_number
from .fixed_tensors import FixedTensors
from .known_result_calls import BATCH, N_ORIGINS, RANDOM, TRAINED, UNKNOWN, Call, Lines, Pass, StepCalls
from .known_result_functions import (
    COPIES,
    LIKE,
    OVERWRITING,
    PER_ITEM,
    PRODUCTS,
    RUNNING,
    Function,
    describe_function,
    is_argument_check,
    is_whole,
    n_bytes,
)

_VARYING = TRAINED | BATCH | RANDOM | UNKNOWN
_LEAST_PART = 0.02  # of forward's or backward's operators

_DETACH, _SOLVE = "aten::detach", "aten::_linalg_solve_ex"

_next_number: Any = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]
_weak_reference: Any = StorageWeakRef  # torch's own class has no types


class _Content(NamedTuple):
    """What a storage holds. ``call`` is the operator of this step that wrote it; None for what was there before."""

    storage: Any  # while it is held, no new storage has the same address
    number: int
    origin: int
    call: Call | None = None


class ResultTracker:
    """Follows the operators of one step.

    ``batch`` is what the step gets; ``is_batch_changed`` says whether hooks may have changed it. ``is_timed``: weights
    are nanoseconds. ``monitored`` are logged names that count as used, ``failure`` why nothing is followed, or empty.
    """

    def __init__(self, module: nn.Module, batch: Any, is_timed: bool = True, is_batch_changed: bool = False) -> None:
        self.failure, self.monitored = "", set[str]()
        self._step = StepCalls(is_timed)
        self._step.are_items_changed = is_batch_changed
        self._begin: tuple[nn.Module, Any] | None = (module, batch)  # until the first operator
        self._again: StepCalls | None = None  # of the step that confirms this one
        self._count = count(1)
        self._frames: dict[tuple[int, bool], int] = {}  # numbers of frames, by id and whether it is a generator's
        self._contents: dict[int, _Content] = {}
        self._results: dict[int, Call] = {}
        self._by_node: dict[int, Call] = {}
        self._last_node = self._n_gradient_uses = 0
        self._passes: dict[int, Pass] = {}
        self._is_after_pass = False  # until its gradients are noted
        self._gradients: set[int] = set()  # addresses of those that a pass has added to
        self._variables: list[weakref.ref[torch.Tensor]] = []
        self._derivative: tuple[int, int] | None = None  # the node and the pass of a derivative
        self._read_origin = 0  # of numbers that were read from tensors: sizes of new tensors may depend on them
        self._origin_of_number: dict[Any, int] = {}
        self._instruction = 0, 0  # of the last operator
        self._n_above = 0  # the user's lines above the step, e.g. a loop over batches
        self._states: Any = None
        self._thread = threading.get_ident()
        self._trained: list[weakref.ref[torch.Tensor]] = []
        self._fixed = FixedTensors()

    def resume(self) -> None:
        """Begin, or go on after operators that were not seen, e.g. an optimizer's step: parameters may have changed."""
        with plain.without_overrides():
            self._guarded(self._resume)

    def add(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any, weight: int, is_view: bool) -> None:
        """Add an operator that was called; ``weight`` is its time, or its FLOPs where it cannot be timed."""
        self._guarded(self._add_any, func, args, kwargs, out, weight, is_view)

    def read(self, tensor: torch.Tensor) -> None:
        """Note that code outside torch reads a tensor: its results are used."""
        self._guarded(self._mark_used, dense_tensors([tensor]))

    def note_kept(self) -> None:
        """Note that results that are still there are used by something, e.g. what the step returned by a hook."""
        self._guarded(self._mark_kept)

    def end(self) -> None:
        """End the step: results that are still there are used by something."""
        if self._begin is None:  # it began
            self._guarded(self._end)

    def has_found(self) -> bool:
        """Return whether something may be found that is worth another step; failures are."""
        return bool(self.failure) or any(
            max(one.forward_part, one.backward_part) >= _LEAST_PART for one in self._step.records(0)
        )

    def confirm(self, again: "ResultTracker") -> None:
        """Take another step of the same training into account: only what both have counts, with the smaller times."""
        self.failure = self.failure or again.failure
        self._again = again._step
        self._step.confirm_constants(again._step)
        again._step.confirm_constants(self._step)

    def found(self) -> tuple[KnownResults, ...]:
        """Return what was found, which may wait for the device. To be called some steps later, and again."""
        return self._guarded(self._found) or ()

    def _guarded(self, function: Any, *args: Any) -> Any:
        """Call a method; record its error, and do nothing from then on."""
        if self.failure:
            return None
        try:
            return function(*args)
        except Exception as error:  # noqa: BLE001 - recorded; the step goes on
            self.failure = error_text(error)
            return None

    def _resume(self) -> None:
        self._n_above = len(user_lines())
        if self._begin is None:
            self._n_gradient_uses += 1
            for reference in self._trained:
                if (tensor := reference()) is not None:
                    self._mark_used([tensor])
                    self._set(tensor, TRAINED)
            for place, tensor in self._fixed.alive():
                self._mark_used([tensor])
                self._set_fixed(tensor, place)
            return
        (module, batch), self._begin = self._begin, None
        self._states = python_random_states()
        for tensor in dense_tensors_of(module):
            if tensor.requires_grad:
                self._trained.append(weakref.ref(tensor))
                self._set(tensor, TRAINED)
            elif (number := self._fixed.add(tensor)) is not None:
                self._set_fixed(tensor, number)
        for tensor in tensors_in(batch, left=search_limit()):
            if is_dense(tensor):
                self._set(tensor, BATCH)
                self._step.batch_bytes += n_bytes(tensor)

    def _set_fixed(self, tensor: torch.Tensor, place: int) -> None:
        self._set(tensor, 1 << (N_ORIGINS + place), hash(("fixed", place, self._n_gradient_uses)))

    def _add_any(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any, weight: int, is_view: bool
    ) -> None:
        node, has_grad = torch._C._current_autograd_node(), torch.is_grad_enabled()
        line = recomputing_line() if node is not None and has_grad else None
        is_here = threading.get_ident() == self._thread
        # A backward pass that is itself differentiated is forward. The user's functions may recompute on purpose.
        is_forward = node is None or (has_grad and line is None and not isinstance(node, torch._C._FunctionBase))
        if node is not None and not (is_here and is_forward):
            owner = self._add_backward(node, weight, 0 if is_view else sum(map(n_bytes, dense_tensors(out))), line)
            if line is None and not is_view and self._step.is_timed:
                number = torch._C._current_graph_task_id(), node._sequence_nr()
                self._step.zeros.add(func, (args, kwargs), out, weight, number, type(node).__name__, owner)
        elif is_here:
            self._derivative = (node._sequence_nr(), torch._C._current_graph_task_id()) if node is not None else None
            number = _next_number()
            # Autograd made this operator's node just before this method was called, if it made one.
            node_number = number - 1 if number > self._last_node and torch.is_grad_enabled() else None
            self._last_node = number
            if self._is_after_pass:
                self._note_gradients()
            inputs = dense_tensors((args, kwargs))
            if not self._gradients.isdisjoint(map(storage_number, inputs)):
                self._n_gradient_uses += 1  # e.g. a gradient is saved, cleared or projected between two passes
                self._gradients.clear()
            if is_view:
                self._add_view(func, inputs, dense_tensors(out))
            else:
                self._add(func, args, kwargs, out, weight, inputs, node_number)

    def _add_view(self, func: Any, inputs: Sequence[torch.Tensor], outs: Sequence[torch.Tensor]) -> None:
        # A detached result may be used in any way, e.g. by NumPy. Autograd detaches what it saves, too, at once.
        if str(func._schema.name) == _DETACH and instruction() != self._instruction:
            for call in self._calls_of(inputs):
                call.is_detached = True
        known = {storage_number(tensor) for tensor in inputs}
        for tensor in outs:
            if storage_number(tensor) not in known:  # allocated, with any content
                self._set(tensor, UNKNOWN)

    def _add(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        out: Any,
        weight: int,
        inputs: Sequence[torch.Tensor],
        node_number: int | None,
    ) -> None:
        outs, function = dense_tensors(out), describe_function(func)
        given: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
        trains = function.trains(args)
        statistics = dense_tensors([given.pop(place) for place in RUNNING]) if trains else []
        written = dense_tensors([given[one] for pair in function.written for one in pair if one in given])
        if function.name in OVERWRITING and written and is_whole(written[0]):
            given.pop(0)
        if function.name in LIKE:
            given[0] = str((outs[0].shape, outs[0].dtype)) if outs else None  # reads no content
            self._mark_used(inputs if inputs and inputs[0].numel() == 1 else ())  # a backward pass begins so
        read = dense_tensors(list(given.values()))
        is_random = function.is_random(args)
        # Batch normalization mixes the items of a batch, so that an item has other results in each epoch.
        origin = self._origin(given, read) | (RANDOM if is_random or trains else 0)
        contents = self._derivative is not None, *((k, self._key(v)) for k, v in given.items())
        key = self._unique() if is_random else hash((func, contents))
        weight -= self._add_factorization(function, args, weight)
        above = lines_above()
        call = Call(weight, key, origin, above.lines, self._results.get(key))
        call.instructions, call.is_check = above.instructions, is_argument_check()
        call.is_logging, call.derivative = is_logging(self.monitored), self._derivative
        call.is_listed = bool(read) and function.name not in COPIES
        # A frame without which an operator was called in the meantime is another one, even if it has the same id; a
        # generator may have been suspended.
        suspended = {one: number for one, number in self._frames.items() if one[1]}
        self._frames = suspended | {one: self._frames.get(one) or next(self._count) for one in above.frames}
        call.loops = tuple((n, self._frames[above.frames[n - 1]]) for n in above.loops if n > self._n_above)
        call.is_per_item = self._is_per_item(function, read)
        call.is_zeroing = function.is_zeroing(args)
        differentiated = self._by_node.get(self._derivative[0]) if self._derivative is not None else None
        producers = (differentiated, *(self._content(tensor).call for tensor in read))
        call.producers = tuple(one for one in producers if one is not None)
        # Also used: what is read as a number, or written to a tensor that was there before, as running statistics are.
        call.is_used = not outs or trains or any(self._content(tensor).call is None for tensor in written)
        self._results.setdefault(key, call)
        self._step.add(call)
        self._instruction = instruction()
        if type(out) in (int, float):
            self._read_origin |= origin
            self._origin_of_number[out] = origin
        if origin & (TRAINED | RANDOM | UNKNOWN):
            self._count_frozen_bytes(read)
        if node_number is not None and any(tensor.requires_grad for tensor in inputs):
            self._by_node[node_number] = call
            call.has_grad = True
        for tensor in statistics:
            self._set(tensor, UNKNOWN)
        for place, tensor in enumerate({id(tensor): tensor for tensor in (*outs, *written)}.values()):
            self._set(tensor, origin, hash((key, place)), call)

    def _add_factorization(self, function: Function, args: Sequence[Any], weight: int) -> int:
        """Add the factorization that a solution of a linear system with a constant matrix includes; return its time.

        It is run once more to be timed, on a CPU.
        """
        matrix = args[0] if function.name == _SOLVE else None
        if matrix is None or not self._step.is_timed or matrix.device.type != "cpu":
            return 0
        content = self._content(matrix)
        if content.origin & _VARYING:
            return 0
        begin = now_ns()
        torch.linalg.lu_factor_ex(matrix.detach())
        key = hash(("factorization", content.number))
        found = Call(min(weight, now_ns() - begin), key, content.origin, user_lines())
        found.is_used = True
        self._step.add(found)
        return found.weight

    def _add_backward(self, node: Any, weight: int, result_bytes: int, line: Lines | None) -> Call | None:
        """Add an operator of a backward pass, or one that activation checkpointing calls again in this line.

        Return the forward operator that it belongs to; None if unknown.
        """
        self._step.backward_weight += weight
        if line is not None:
            self._step.add_recomputed(weight, result_bytes, line)
            return None
        number = torch._C._current_graph_task_id()
        one = self._passes.get(number)
        if one is None:
            self._pass_begins()
            one = self._passes[number] = Pass(user_lines(), self._n_gradient_uses)
        self._is_after_pass = True
        if (parameter := accumulating_parameter(node)) is not None:
            one.parameters.add(id(parameter))
            self._variables.append(weakref.ref(parameter))
        if (owner := self._by_node.get(node._sequence_nr())) is not None:
            owner.passes[one] = owner.passes.get(one, 0) + weight
        return owner

    def _pass_begins(self) -> None:
        """Count a pause if gradients of the last pass were cleared."""
        self._note_gradients()
        tensors = [reference() for reference in self._variables]
        if any(tensor is not None and tensor.grad is None for tensor in tensors):
            self._n_gradient_uses += 1
        self._variables.clear()
        self._gradients.clear()

    def _note_gradients(self) -> None:
        """Note where the gradients of the last pass are, to see whether they are used before the next one."""
        self._is_after_pass = False
        for reference in self._variables:
            gradient = tensor.grad if (tensor := reference()) is not None else None
            if gradient is not None and is_dense(gradient):
                self._gradients.add(storage_number(gradient))

    def _end(self) -> None:
        self._step.are_items_changed |= python_random_states() != self._states
        self._mark_kept()
        self._step.find_used()
        for kept in (self._contents, self._results, self._by_node, self._passes, self._variables):
            kept.clear()

    def _found(self) -> tuple[KnownResults, ...]:
        changed = sum(1 << (N_ORIGINS + place) for place in self._fixed.changed())
        return self._step.records(changed) if self._again is None else self._step.common_records(self._again, changed)

    def _mark_kept(self) -> None:
        for content in self._contents.values():
            if content.call is not None and not content.storage.expired():
                content.call.is_used = True

    def _mark_used(self, tensors: Iterable[torch.Tensor]) -> None:
        for call in self._calls_of(tensors):
            call.is_used = True

    def _calls_of(self, tensors: Iterable[torch.Tensor]) -> Iterator[Call]:
        return (call for tensor in tensors if (call := self._content(tensor).call) is not None)

    def _count_frozen_bytes(self, read: Iterable[torch.Tensor]) -> None:
        """Count the bytes of inputs that depend on the batch only, but are computed."""
        for tensor in read:
            content = self._content(tensor)
            if content.call is not None and content.origin & _VARYING == BATCH:
                self._step.frozen_bytes[content.number] = tensor.untyped_storage().nbytes()

    def _is_per_item(self, function: Function, read: Sequence[torch.Tensor]) -> bool:
        """Return whether each item of the batch has its own results, if the first dimension is that of the items."""
        others = read[-1:] if function.name in PRODUCTS else ()
        return function.name in PER_ITEM and not any(self._content(one).origin & BATCH for one in others)

    def _origin(self, given: dict[Any, Any], read: Sequence[torch.Tensor]) -> int:
        origin = self._read_origin if not read else 0
        for tensor in read:
            origin |= self._content(tensor).origin
        for value in given.values():
            if type(value) in (int, float):
                origin |= self._origin_of_number.get(value, 0)
        if len(read) < sum(isinstance(value, torch.Tensor) for value in flat(list(given.values()))):
            origin |= UNKNOWN  # a sparse tensor, or one of a subclass
        return origin

    def _key(self, value: Any) -> Any:
        if is_dense(value):
            content = self._content(value)
            if content.call is None and content.origin == UNKNOWN:
                return self._unique()  # code that is no operator may write to it
            bits = value.is_conj(), value.is_neg()  # of a lazy view, which some operators read as it is
            return content.number, value.storage_offset(), tuple(value.shape), value.stride(), value.dtype, bits
        if type(value) in (list, tuple):
            return tuple(map(self._key, value))
        # As text, since `hash(-1) == hash(-2)`.
        return (type(value), str(value)) if type(value) in PLAIN_TYPES else self._unique()

    def _unique(self) -> int:
        return hash((id(self), next(self._count)))

    def _content(self, tensor: torch.Tensor) -> _Content:
        return self._contents.get(storage_number(tensor)) or self._set(tensor, UNKNOWN)

    def _set(self, tensor: torch.Tensor, origin: int, number: int | None = None, call: Call | None = None) -> _Content:
        """Note what a tensor's storage holds now; ``number`` is None for a content that is equal to no other."""
        storage = _weak_reference(tensor.untyped_storage())
        content = _Content(storage, self._unique() if number is None else number, origin, call)
        self._contents[storage_number(tensor)] = content
        return content
