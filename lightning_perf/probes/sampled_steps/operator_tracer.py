"""Trace one step's operators: synchronizing calls, loops over tensors, attention written out.

A ``TorchDispatchMode`` sees operators below autograd and calls them unchanged, so results are bit-identical. Work that
torch does without an operator is seen by ``patch_reads``.
"""

import dis
import sys
import threading
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from lightning_perf.probes.clock import now_ns as host_now_ns
from lightning_perf.probes.plain import without_overrides
from lightning_perf.seams import Undos

from .code_lines import CodeLines, SourceLine, StackView
from .dependency_chains import DependencyChains
from .function_calls import Hits, Moment
from .tracing import PassiveMode, StepTracer, leave_mode, patch_reads
from .written_attention import AttentionMatcher

_N_VIEWS = 40  # operators per round when the cost of a dispatch mode is measured

_WAITING = {
    **{name: name for name in ("nonzero", "equal", "bincount", "repeat_interleave")},
    **dict.fromkeys(("_unique2", "unique_dim", "unique_consecutive"), "unique"),
    "masked_select": "boolean mask",
}


def sync_label(name: str, args: Any, kwargs: Any, out: Any, stack: StackView, device_type: str) -> str:
    """Return the label of an operator that makes the host wait for the device; empty for others.

    With ``device_type`` ``"cpu"``: of one that would wait on a device. ``name`` has no namespace and no underscore of
    an in-place operator. A copy to the host waits unless it has ``non_blocking`` and goes to pinned memory:
    https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html
    """

    def is_on_device(tensor: Any) -> bool:
        return bool(tensor.device.type == device_type)

    if name == "_local_scalar_dense":
        return _reading_label(stack) if is_on_device(args[0]) else ""
    if name in _WAITING:
        is_size_known = kwargs.get("output_size") is not None  # of `repeat_interleave`
        return _WAITING[name] if args and is_on_device(args[0]) and not is_size_known else ""
    if name in ("index", "_unsafe_index", "index_put", "_index_put_impl"):
        is_masked = any(getattr(each, "dtype", None) in (torch.bool, torch.uint8) for each in args[1])
        is_one = name.endswith(("put", "impl")) and args[2].numel() == 1  # becomes a masked_fill, which does not wait
        return "boolean mask" if is_masked and not is_one and is_on_device(args[0]) else ""
    if device_type == "cpu":
        return ""
    if name == "_to_copy":
        label, source, target, is_async = "cpu", args[0], out, kwargs.get("non_blocking", False)
    elif name == "copy":
        label, source, target, is_async = "copy_", args[1], args[0], len(args) > 2 and args[2]
    else:
        return ""
    is_to_host = target.device.type == "cpu" and is_on_device(source)
    return label if is_to_host and not (is_async and target.is_pinned()) else ""


def _reading_label(stack: StackView) -> str:
    """Return the expression by which the user reads a number from a tensor."""
    if any(function == "__format__" for _, function in stack.via):
        return "format(tensor)"
    frame = stack.frame
    if frame is None or not (0 <= frame.f_lasti < len(frame.f_code.co_code)):
        return "item"
    operation = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    # From Python 3.13 on, a comparison also converts its result.
    is_truth_test = ("JUMP" in operation and "_IF_" in operation) or operation in ("UNARY_NOT", "TO_BOOL", "COMPARE_OP")
    return "bool(tensor)" if is_truth_test and not stack.via else "item"


def is_in_optimizer(stack: StackView) -> bool:
    """Return whether a torch optimizer called the operator to read its step counters: on the host, so nothing waits."""
    return any(function == "step" or file.startswith(("adam", "sgd", "optimizer")) for file, function in stack.via)


Sync = tuple[SourceLine, str, str]
"""Line, label and phase of a synchronizing call."""


class OperatorTracer(PassiveMode, StepTracer):
    """Traces one step's operators, from ``open`` to ``close``.

    Only synchronization with ``device`` counts. ``entry_ns`` is the cost per operator from ``entry_cost_ns``.
    ``n_syncs`` and ``sync_ns`` are the number and the nanoseconds of synchronizing calls.
    """

    def __init__(
        self, device: torch.device, entry_ns: float, phase: Callable[[], str], now_ns: Callable[[], int]
    ) -> None:
        super().__init__()
        self.failure = ""
        self.lines = CodeLines()
        self._device = device
        self._entry_ns = entry_ns
        self._now_ns = now_ns
        self._phase = phase
        self._own_ns = 0
        self._begin_ns = self._end_ns = 0
        self._is_inside = False  # a patched method
        self._thread = threading.get_ident()
        self._undos = Undos()
        self.n_syncs: Counter[Sync] = Counter()
        self.sync_ns: Counter[Sync] = Counter()
        self.attention = AttentionMatcher()
        self._chains = DependencyChains()

    def open(self) -> None:
        patch_reads(self._called, self._undos)
        self.lines.begin(sys._getframe(1))
        self.__enter__()
        self._begin_ns = self._now_ns()

    def close(self) -> bool:
        self._end_ns = self._end_ns or self._now_ns()
        self.lines.end()
        self._undos.close()
        return leave_mode(self)

    def _called(self, name: str, tensor: Any, original: Any, args: Any, kwargs: Any) -> Any:
        if self._is_inside or self._end_ns or threading.get_ident() != self._thread:
            return original(tensor, *args, **kwargs)
        begin = self._now_ns()
        self._is_inside = True
        try:
            return original(tensor, *args, **kwargs)
        finally:
            self._is_inside = False
            try:
                with without_overrides():
                    is_on_device = tensor.device.type == self._device.type
                if is_on_device:
                    self._count(self.lines.place(), name, self._now_ns() - begin)
            except Exception as error:  # noqa: BLE001 - recorded; the user's call has been made
                self._fail(error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        begin = self._now_ns()
        kwargs = kwargs or {}
        stack, name = None, ""
        if not (self._end_ns or self.failure):
            try:
                name = _name_of(func)
                stack = self.lines.inspect(sys._getframe(1), name, begin, self._own_ns, self._phase())
            except Exception as error:  # noqa: BLE001 - recorded; the operator itself must be called
                self._fail(error)
        called = self._now_ns()
        out = func(*args, **kwargs)
        done = self._now_ns()
        if stack is not None and not self.failure:
            try:
                self._add(stack, name, args, kwargs, out, done - called)
                if any(call.is_repeating for call in stack.calls):
                    self._chains.follow(stack.calls, stack.hits, func, args, kwargs, out)
                moment = Moment(done, self._own_ns + called - begin, self.lines.n_operators)
                for hits in stack.hits:
                    hits.last = moment
            except Exception as error:  # noqa: BLE001 - recorded
                self._fail(error)
        self._own_ns += self._now_ns() - done + called - begin
        return out

    def _add(self, stack: StackView, name: str, args: Any, kwargs: Any, out: Any, ns: int) -> None:
        label = sync_label(name, args, kwargs, out, stack, self._device.type)
        if label and not self._is_inside and not is_in_optimizer(stack):
            self._count(stack.place, label, ns)
        if name == "unbind":
            self.lines.unbound(stack, len(out))
        self.attention.follow(stack, name, args, out, ns, is_backward=self._phase() == "backward")

    def _count(self, place: SourceLine, label: str, ns: int) -> None:
        sync = place, label, self._phase()
        self.n_syncs[sync] += 1
        self.sync_ns[sync] += ns

    def step_s(self) -> float:
        """Return the step's duration without the known tracing cost."""
        return max(1e-9, (self._end_ns - self._begin_ns - self._own_ns - self.lines.n_operators * self._entry_ns) / 1e9)

    @property
    def cost_ns(self) -> int:  # type: ignore[override]
        return int(self._own_ns + self.lines.n_operators * self._entry_ns)

    def loop_s(self, hits: Hits) -> float:
        """Return seconds between the first and the last hit of an instruction, without tracing cost."""
        first, last = hits.first, hits.last
        tracing_ns = last.own_ns - first.own_ns + (last.n_operators - first.n_operators) * self._entry_ns
        return max(0.0, (last.ns - first.ns - tracing_ns) / 1e9)


@lru_cache(maxsize=1024)
def _name_of(func: Any) -> str:
    if getattr(func, "namespace", "aten") != "aten":
        return str(func)  # a library's operator may have the name of one of torch's, and other arguments
    return str(getattr(func, "__name__", func)).split(".")[0].rstrip("_") or str(func)


def entry_cost_ns() -> float:
    """Return nanoseconds per operator that a dispatch mode costs beyond what it times itself: the least of 3 rounds."""
    tensor = torch.zeros(1, device="cpu")
    plain, watched = [], []
    for _ in range(3):
        plain.append(_time_views(tensor))
        mode = PassiveMode()
        try:
            with mode:
                watched.append(_time_views(tensor))
        finally:
            leave_mode(mode)  # where an interrupt came while it was entered
    return max(0.0, (min(watched) - min(plain)) / _N_VIEWS)


def _time_views(tensor: torch.Tensor) -> int:
    begin = host_now_ns()
    for _ in range(_N_VIEWS):
        tensor.view(1)
    return host_now_ns() - begin
