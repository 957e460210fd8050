"""Forward and backward time of a model's modules in one step.

The parts of the step are cut at marks, so that the modules' times and the rest add up to them by construction. Forward
marks are module hooks. Backward marks are hooks on the autograd nodes that made a module's outputs and inputs: unlike
``register_full_backward_hook`` they put no node of their own into the graph, so that views, operations in place and
inputs without gradients stay what they are. They go with the graph of that step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import torch
from torch import nn

from lightning_perf.interrupts import raise_if_from_signal
from lightning_perf.records import ModelProfile, ModuleProfile

from .clock import DeviceEvent
from .machine import device_name
from .module_hooks import ModuleWatch, can_have_hooks
from .module_walk import bare_profile, listed_modules, named_modules, parameters
from .plain import field, is_lazy, is_readable_tensor, n_elements, tensors_in

REST = ""
"""What ran in none of the listed modules: the loss, the step itself."""

_MARK = "lightning_perf.module_times"
_MAX_EVENTS = 4096  # of a device, in one step
_DEPTH = 4


class ModuleTime(NamedTuple):
    """Seconds of one module in one step; the innermost listed module has them alone.

    Attributes:
        calls: Of forward, a recomputation in the backward pass included.
    """

    forward_s: float
    backward_s: float
    calls: int


class ModuleTimes:
    """Times the modules of one step.

    Args:
        root: The model.
        depth: How deep its modules are told apart, 1 for the top-level ones.
        now_ns: The host's clock.
        make_event: Makes an event of the device; None where the host's clock says it all.
    """

    def __init__(
        self,
        root: nn.Module,
        depth: int,
        now_ns: Callable[[], int],
        make_event: Callable[[], DeviceEvent] | None = None,
    ) -> None:
        self.failure = ""
        self.spent_ns = 0
        self._now_ns = now_ns
        self._make_event = make_event
        modules = listed_modules(root, depth)
        self._modules = {path: module for path, module in modules.items() if can_have_hooks(module)}
        self._watch = ModuleWatch(self._modules, self._entering, self._leaving)
        self._running: list[str] = []  # what was current when each running module was entered
        self._current = REST
        self._phase = ""
        self._phases: list[str] = []
        self._last: int | DeviceEvent | None = None
        self._spans: list[tuple[str, str, DeviceEvent, DeviceEvent]] = []
        self._ns: dict[tuple[str, str], float] = {}
        self._calls: dict[str, int] = {}
        self._lock = threading.Lock()

    # -- the parts of the step ----------------------------------------------------------------------------------------

    def open(self) -> None:
        """The step begins."""
        begin = self._now_ns()
        self._watch.put()
        self.spent_ns += self._now_ns() - begin

    def enters(self, name: str) -> None:
        """A part of the step begins; in manual optimization the backward pass is a part of the training step."""
        phase = _PHASES.get(name)
        if phase is not None:
            self._mark(REST)
            self._phases.append(self._phase)
            self._phase, self._current = phase, REST
            if self._last is None and not self.failure:
                self._last = self._now()

    def leaves(self, name: str) -> None:
        """It is over."""
        if name in _PHASES and self._phases:
            self._mark(REST)
            self._phase = self._phases.pop()
            if not self._phase:
                self._last = None

    def close(self) -> None:
        """The step is over; twice does no harm."""
        self._phase, self._last = "", None
        self._phases.clear()
        self._watch.remove()

    # -- marks --------------------------------------------------------------------------------------------------------

    def _entering(self, path: str, args: Any, kwargs: Any) -> None:
        begin = self._now_ns()
        try:
            self._calls[path] = self._calls.get(path, 0) + 1
            for tensor in tensors_in((args, kwargs), _DEPTH, in_objects=False):
                self._hook(tensor, self._current)
            self._running.append(self._current)
            self._mark(path)
        except Exception as error:  # noqa: BLE001 - told in the record; the step goes on
            self._fail(error)
        self.spent_ns += self._now_ns() - begin

    def _leaving(self, path: str, output: Any) -> None:
        begin = self._now_ns()
        try:
            for tensor in tensors_in(output, _DEPTH, in_objects=False):
                self._hook(tensor, path)
            self._mark(self._running.pop() if self._running else REST)
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(error)
        self.spent_ns += self._now_ns() - begin

    def _hook(self, tensor: torch.Tensor, path: str) -> None:
        """When the gradient reaches the node that made this tensor, backward goes on in the module of this path.

        The first who says so is right: the innermost module that made the tensor, before those that hand it on.
        """
        node: Any = field(tensor, "grad_fn")
        if node is None or _MARK in node.metadata:
            return
        node.metadata[_MARK] = True

        def reached(gradients: Any) -> None:
            if self._phase == "backward":
                begin = self._now_ns()
                try:
                    self._mark(path)
                except Exception as error:  # noqa: BLE001 - as above
                    self._fail(error)
                self.spent_ns += self._now_ns() - begin

        node.register_prehook(reached)

    def _mark(self, path: str) -> None:
        """Charges the time since the last mark; from here on it is this module's."""
        with self._lock:  # a device's backward runs in a thread of its own
            if not self._phase or self._last is None:
                return
            now = self._now()
            key = (self._phase, self._current)
            if isinstance(now, int):
                assert isinstance(self._last, int)
                self._ns[key] = self._ns.get(key, 0) + now - self._last
            else:
                if len(self._spans) >= _MAX_EVENTS:
                    raise RuntimeError(f"more than {_MAX_EVENTS} marks in a step: choose a smaller depth")
                self._spans.append((*key, self._last, now))  # type: ignore[arg-type]
            self._current, self._last = path, now

    def _now(self) -> int | DeviceEvent:
        if self._make_event is None:
            return self._now_ns()
        event = self._make_event()
        event.record()
        return event

    def _fail(self, error: Exception) -> None:
        raise_if_from_signal(error)
        self.failure = self.failure or f"{type(error).__name__}: {error}"
        self._last = None

    # -- what it comes to ---------------------------------------------------------------------------------------------

    def is_resolved(self) -> bool:
        """Whether the device has come to the end of the step; never waits."""
        return not self._spans or self._spans[-1][3].query()

    def times(self) -> dict[str, ModuleTime] | None:
        """Seconds by path, ``REST`` among them; None where it failed, or the device has not come so far."""
        if self.failure or not self.is_resolved():
            return None
        for phase, path, begin, end in self._spans:
            ms = begin.elapsed_time(end)
            self._ns[phase, path] = self._ns.get((phase, path), 0) + ms * 1e6
        self._spans.clear()
        paths = [*self._modules, REST]
        return {
            path: ModuleTime(
                self._ns.get(("forward", path), 0) / 1e9,
                self._ns.get(("backward", path), 0) / 1e9,
                self._calls.get(path, 0),
            )
            for path in paths
        }


_PHASES = {"training_step": "forward", "backward": "backward"}


def mean_times(looks: list[dict[str, ModuleTime]]) -> dict[str, ModuleTime]:
    """The mean of several steps; a module that did not run in one of them took no time there."""
    n = len(looks)
    paths = {path: None for look in looks for path in look}
    nothing = ModuleTime(0.0, 0.0, 0)
    return {
        path: ModuleTime(
            sum(look.get(path, nothing).forward_s for look in looks) / n,
            sum(look.get(path, nothing).backward_s for look in looks) / n,
            max(look.get(path, nothing).calls for look in looks),
        )
        for path in paths
    }


def with_times(
    profile: ModelProfile | None, root: nn.Module, device: torch.device, times: dict[str, ModuleTime]
) -> ModelProfile:
    """A model's profile with the times of its modules.

    Args:
        profile: As counted; None where arithmetic was not counted: the modules are then told with their times alone.
        root: The model.
        device: That it runs on.
        times: Seconds a step by path.
    """
    modules = () if profile is None else profile.modules
    if profile is None:
        profile = bare_profile(root, device_name(device))
        profile = msgspec.structs.replace(profile, missing={"forward_flops": "the arithmetic of no step was counted"})
    known = {module.path for module in modules}
    parts = dict(named_modules(root))  # a part that was timed may be gone since
    seen: set[int] = set()
    for path in times:
        if path not in known:
            part = None if path == REST else parts.get(path)
            own = [] if part is None else [p for p in parameters(part) if id(p) not in seen and _has_size(p)]
            seen.update(map(id, own))
            name = "" if part is None else type(part).__name__
            modules = (
                *modules,
                ModuleProfile(path=path, class_name=name, n_parameters=sum(n_elements(p) for p in own)),
            )
    timed = [
        msgspec.structs.replace(
            module,
            forward_s=times[module.path].forward_s,
            backward_s=times[module.path].backward_s,
            calls=module.calls or times[module.path].calls,
        )
        if module.path in times
        else module
        for module in modules
    ]
    timed.sort(key=lambda module: -((module.forward_s or 0.0) + (module.backward_s or 0.0)))
    return msgspec.structs.replace(profile, modules=tuple(timed))


def _has_size(parameter: torch.Tensor) -> bool:
    return is_readable_tensor(parameter) and not is_lazy(parameter)
