"""Count operations and memory traffic of one step, by module and operator, forward and backward.

A ``TorchDispatchMode`` sees each operator below autograd and passes it on unchanged. The module of a backward operator
follows from the sequence number of its autograd node: torch numbers nodes as the forward pass makes them, and the
numbers at which modules were entered and left are recorded. No tensor gets a hook.
"""

import threading
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec
import torch
from torch import nn
from torch._ops import OpOverload

from lightning_perf.interrupts import error_text
from lightning_perf.probes.clock import now_ns as host_now_ns
from lightning_perf.probes.plain import without_overrides
from lightning_perf.probes.replay.calls import CallLog
from lightning_perf.probes.sampled_steps.known_results import ResultTracker
from lightning_perf.probes.sampled_steps.loss_targets import TargetCounter
from lightning_perf.probes.sampled_steps.tracing import (
    ModuleWatch,
    PassiveMode,
    StepTracer,
    current_mode,
    leave_mode,
    patch_reads,
)
from lightning_perf.records import ModelProfile, ModuleProfile, OperatorProfile
from lightning_perf.seams import Undos
from lightning_perf.stats.roofline import work_of

from .made_at import made_at
from .module_walk import bare_profile, containing_module, listed_modules, named_parameters, parameters_by_module
from .operators import Operator, denormal_fractions, describe, dtype_of, positional, precision_of, rows_of
from .passes import PassCounter

Direction = Literal["forward", "backward"]

MAX_COST_S = 3.0
"""Counting stops in a step in which it has taken this long: each operator takes 30 to 250 us, depending on the CPU."""

MAX_OPERATORS_LISTED = 24

_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


class _Row:
    """Totals of one operator in one module."""

    __slots__ = ("calls", "denormal", "flops", "inspected_ns", "n_bytes", "n_rows", "n_started", "ns", "recomputed")

    def __init__(self) -> None:
        self.calls = self.flops = self.n_bytes = self.n_rows = self.n_started = self.ns = self.recomputed = 0
        self.inspected_ns = 0
        self.denormal = 0.0


_DIRECTIONS: dict[str, Direction | None] = {
    "training_step": "forward", "backward": "backward", "zero_grad": None, "optimizer_step": None,
}  # fmt: skip
"""Direction counted in each part of a step."""


class ArithmeticCounter(StepTracer):
    """Counter of operations in forward and backward of a step, or while it is entered.

    ``depth`` is 1 for the top-level modules. Timing operators by the host's clock is meaningful on a CPU only. ``log``
    also collects the calls for replays, ``results`` follows what they compute. ``below`` is PerfDoctor's own dispatch
    mode that is already in place, if any.
    """

    def __init__(
        self,
        module: nn.Module,
        depth: int = 1,
        now_ns: Callable[[], int] = host_now_ns,
        times_operators: bool = False,
        log: CallLog | None = None,
        results: ResultTracker | None = None,
        below: Any = None,
    ) -> None:
        self.direction: Direction = "forward"
        self.failure = ""
        self.cost_ns = 0
        self.n_operators = 0
        self.calls: dict[str, int] = {}
        self.precisions: dict[str, int] = {}
        self.uncounted: set[str] = set()
        self.has_backward = False
        self.log, self.results = log, results
        self.targets = TargetCounter()
        self._root, self._below = module, below
        self._depth = depth
        self._now_ns = now_ns
        self._times = times_operators
        self._modules = listed_modules(module, depth)
        self._owners = {id(p): containing_module(name, self._modules) for name, p in named_parameters(module)}
        self._rows: dict[tuple[Direction, str, str, str], _Row] = {}
        self._known: dict[Any, Operator] = {}
        self._mode = _Mode(self)
        self.is_entered = False
        self._watch = ModuleWatch(self._modules, self._entering, self._leaving)
        if log is not None:
            log.packed.watch(module)
        self._thread = threading.get_ident()
        self._undos = Undos()
        self._sequences: list[int] = []
        self._paths: list[str] = []
        self._parts: list[str] = []
        self.passes = PassCounter(module)
        self._is_pass = False  # whether one is to begin

    def enters(self, name: str) -> None:
        """Begin a part of the step; in manual optimization, parts are inside the training step."""
        self._is_pass |= name == "training_step"
        if name in _DIRECTIONS:
            self._parts.append(name)
            self._apply_part()

    def leaves(self, name: str) -> None:
        if name in self._parts:
            while self._parts.pop() != name:
                pass
            self._apply_part()

    def close(self) -> bool:
        self.__exit__()
        return not self.is_entered

    def _apply_part(self) -> None:
        """Count as the innermost part requires: forward, backward, or not at all."""
        direction = _DIRECTIONS[self._parts[-1]] if self._parts else None
        if direction is None:
            self.__exit__()
        else:
            self.direction = direction
            self.__enter__()

    def __enter__(self) -> "ArithmeticCounter":
        if self.is_entered:
            return self
        try:
            # In manual optimization this is entered inside a module; no listed module is running then.
            self._watch.running.clear()
            if not self.failure:
                self.failure = _why_not(self._below)
            if self.failure:
                return self
            if self._is_pass:
                self._is_pass = False
                self.passes.begin()
            if self.results is not None:
                self.results.resume()
                patch_reads(self._reading, self._undos)
            self._watch.install()
            if self.log is not None:
                self.log.packed.install()
            self.is_entered = True  # first: an interrupt may come right after entering
            self._mode.__enter__()
        except Exception as error:  # noqa: BLE001 - recorded: it was not counted
            self.failure = error_text(error)
            self.__exit__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._watch.remove()
        if self.log is not None:
            self.log.packed.remove()
        self._undos.close()
        if not self.is_entered:
            return
        if not leave_mode(self._mode):
            # Another mode was entered meanwhile and must be left first; until then this one only passes on.
            self.failure = self.failure or "another dispatch mode was entered within the step, and not left again"
            return
        self.is_entered = False

    def _entering(self, path: str, args: Any, kwargs: Any) -> None:
        self.calls[path] = self.calls.get(path, 0) + 1
        self._mark()

    def _leaving(self, path: str, output: Any) -> None:
        self._mark()

    def _mark(self) -> None:
        """Record which module the autograd nodes created from now on belong to."""
        if threading.get_ident() == self._thread and not self.failure:
            try:
                self._sequences.append(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]
            except Exception as error:  # noqa: BLE001 - a private function, asked within the user's forward: reported
                self.failure = error_text(error)
                return
            self._paths.append(self._watch.innermost)

    def _path_of(self, node: Any) -> str:
        if self._watch.running:
            return self._watch.innermost
        variable = getattr(node, "variable", None)  # of AccumulateGrad, which has no number of its own
        if variable is not None:
            return self._owners.get(id(variable), "")
        place = bisect_right(self._sequences, node._sequence_nr()) - 1
        return self._paths[place] if place >= 0 else ""

    def run(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], types: Sequence[type]) -> Any:
        """Run an operator and count it. Return its result even if counting fails.

        Return NotImplemented for an operator made of others on a tensor of ``types`` that run operators their own way.
        """
        if not self.failure and not isinstance(func, OpOverload):
            self.failure = f"the step ran {func}, whose inner operators are not visible"
        if self.failure:
            return func(*args, **kwargs)
        known = self._known.get(func)
        if known is None:
            try:
                known = self._known[func] = describe(func)
            except Exception as error:  # noqa: BLE001 - recorded; the step goes on uncounted
                self.failure = error_text(error)
                return func(*args, **kwargs)
        if known.is_composite:  # in inference mode, torch does not decompose it first
            if types:  # a nested tensor decomposes otherwise, and asks for its sizes through operators
                return NotImplemented
            with self._mode:
                return func._op_dk(_COMPOSITE, *args, **kwargs)  # `decompose` may take another one, in Python
        begin = self._now_ns()
        out = func(*args, **kwargs)
        end = self._now_ns()
        is_view = known.traffic is None
        try:
            with without_overrides():
                denormals = denormal_fractions(args) if self._times and known.formula is not None else {}
                self._count(known, args, kwargs, out, end - begin, denormals)
                if self.log is not None:
                    ns = end - begin if self._times else 0
                    self.log.add(func, args, kwargs, out, ns, is_view, denormals)
                    self.targets.add(known.name, positional(args, kwargs))
                if self.results is not None:
                    weight = end - begin
                    if not self._times:
                        weight = known.formula(positional(args, kwargs), out) if known.formula is not None else 0
                    self.results.add(func, args, kwargs, out, weight, is_view)
        except Exception as error:  # noqa: BLE001 - recorded; the step goes on uncounted
            self.failure = f"counting {known.name}: {error_text(error)}"
        self.cost_ns += self._now_ns() - end
        return out

    def _reading(self, name: str, tensor: Any, original: Any, args: Any, kwargs: Any) -> Any:
        """Run what reads a tensor without an operator."""
        if self.results is not None and threading.get_ident() == self._thread:
            with without_overrides():
                self.results.read(tensor)
        return original(tensor, *args, **kwargs)

    def _count(
        self, known: Operator, args: Sequence[Any], kwargs: dict[str, Any], out: Any, ns: int, shares: dict[int, float]
    ) -> None:
        self.n_operators += 1
        if self.cost_ns > MAX_COST_S * 1e9:
            self.failure = f"counting the first {self.n_operators:,} operators of a step took {MAX_COST_S:.0f} s"
            return
        node = torch._C._current_autograd_node()
        direction: Direction = "forward" if node is None and self.direction == "forward" else "backward"
        path = self._watch.innermost if node is None else self._path_of(node)
        dtype = dtype_of(args)
        key = (direction, path, known.name, str(dtype).removeprefix("torch.") if dtype is not None else "")
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = _Row()
        row.calls += 1
        row.ns += ns
        if known.traffic is not None:
            row.n_started += 1
            row.n_bytes += known.traffic(args, kwargs, out)
        self.has_backward |= direction == "backward"
        if known.formula is not None:
            given = positional(args, kwargs)
            flops = known.formula(given, out)
            row.flops += flops
            row.n_rows += rows_of(given)
            if shares:
                row.denormal += max(shares.values()) * ns
                row.inspected_ns += ns
            if direction == "backward" and torch.is_grad_enabled():  # backward itself runs without gradients
                row.recomputed += flops
            if dtype is not None and flops:
                precision = precision_of(dtype, args)
                self.precisions[precision] = self.precisions.get(precision, 0) + flops
        elif known.is_uncounted:
            self.uncounted.add(known.name)

    def profile(self, device: str, n_samples: int | None = None, step: int | None = None) -> ModelProfile:
        """Return what was counted on ``device``, in a batch of ``n_samples``, after ``step`` steps."""
        replace = msgspec.structs.replace
        bare = replace(bare_profile(self._root, device), n_samples=n_samples, step=step, module_depth=self._depth)
        if self.failure:
            return replace(bare, missing={"forward_flops": self.failure, "modules": self.failure})
        forward = [row for (way, *_), row in self._rows.items() if way == "forward"]
        backward = [row for (way, *_), row in self._rows.items() if way == "backward"]
        missing = {} if self.has_backward else {"backward_flops": "the step ran no backward pass"}
        return replace(
            bare,
            precision=max(self.precisions, key=lambda name: self.precisions[name], default=""),
            forward_flops=sum(row.flops for row in forward),
            backward_flops=sum(row.flops for row in backward) if self.has_backward else None,
            recomputed_flops=sum(row.recomputed for row in backward),
            forward_bytes=sum(row.n_bytes for row in forward),
            backward_bytes=sum(row.n_bytes for row in backward) if self.has_backward else None,
            uncounted=tuple(sorted(self.uncounted)),
            modules=self._module_profiles(),
            operators=self._operator_profiles(),
            missing=missing,
        )

    def _module_profiles(self) -> tuple[ModuleProfile, ...]:
        n_parameters = parameters_by_module(self._root, self._modules)
        rows: defaultdict[tuple[str, str], list[_Row]] = defaultdict(list)
        for (way, path, *_), row in self._rows.items():
            rows[way, path].append(row)
        found = []
        for path in ("", *self._modules):
            forward, backward = rows["forward", path], rows["backward", path]
            if not forward and not backward and not n_parameters.get(path):
                continue
            found.append(
                ModuleProfile(
                    path=path,
                    class_name=type(self._modules[path]).__name__ if path else "",
                    n_parameters=n_parameters.get(path, 0),
                    calls=self.calls.get(path, 0),
                    forward_flops=sum(r.flops for r in forward),
                    backward_flops=sum(r.flops for r in backward) if self.has_backward else None,
                    forward_bytes=sum(r.n_bytes for r in forward),
                    backward_bytes=sum(r.n_bytes for r in backward) if self.has_backward else None,
                    n_operators=sum(r.n_started for r in forward + backward),
                    site=made_at(self._root, path) if path else "",
                )
            )
        return tuple(sorted(found, key=work_of, reverse=True))

    def _operator_profiles(self) -> tuple[OperatorProfile, ...]:
        merged: dict[tuple[str, str], _Row] = {}
        for (_, _, name, dtype), row in self._rows.items():
            if row.n_started:
                total = merged.setdefault((name, dtype), _Row())
                for field in _Row.__slots__:
                    setattr(total, field, getattr(total, field) + getattr(row, field))
        operators = [
            OperatorProfile(
                name=name,
                dtype=dtype,
                calls=row.calls,
                flops=row.flops,
                n_bytes=row.n_bytes,
                n_rows=row.n_rows,
                total_s=row.ns / 1e9 if self._times else None,
                denormal_fraction=row.denormal / row.inspected_ns if row.inspected_ns else None,
            )
            for (name, dtype), row in merged.items()
        ]
        operators.sort(key=lambda o: (o.total_s or 0.0, o.flops, o.n_bytes), reverse=True)
        return tuple(operators[:MAX_OPERATORS_LISTED])


class _Mode(PassiveMode):
    """Passes each operator to the counter."""

    def __init__(self, counter: ArithmeticCounter) -> None:
        super().__init__()
        self._counter = counter

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "namespace", "") == "prim":  # the device of a fake tensor: an error here ends the process
            return func(*args, **(kwargs or {}))
        return self._counter.run(func, args, kwargs or {}, types)


def _why_not(below: Any) -> str:
    """Return why operators cannot be counted now; empty if they can."""
    mode = current_mode()
    if mode is below:
        return ""
    return f"the script's own dispatch mode {type(mode).__name__} is in place and would see what counting does"
