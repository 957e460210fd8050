"""Forward and backward time of a model's modules in one step.

Marks cut the parts of the step, so that module times and the rest add up to them. Forward marks are module hooks.
Backward marks are hooks on the autograd nodes of a module's inputs and outputs. Unlike ``register_full_backward_hook``
they add no node to the graph, so views, in-place operations and inputs without gradients do not change. They are freed
with the step's graph.
"""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import msgspec
import torch
from torch import nn

from lightning_perf.probes.clock import DeviceEvent
from lightning_perf.probes.plain import field, search_limit, tensors_in
from lightning_perf.probes.sampled_steps.tracing import ModuleWatch, StepTracer, can_have_hooks
from lightning_perf.probes.settings.machine import device_name
from lightning_perf.records import ModelProfile, ModuleProfile

from .module_walk import bare_profile, listed_modules, named_modules, parameters_by_module

REST = ""
"""Path of the time outside all listed modules: the loss, the step itself."""

_MARK = "lightning_perf.module_times"
_MAX_EVENTS = 4096  # of a device, in one step
_DEPTH = 4


class ModuleTime(NamedTuple):
    """Seconds of one module in one step, without listed modules inside it.

    ``calls`` counts forward passes, including recomputation in the backward pass.
    """

    forward_s: float
    backward_s: float
    calls: int


class ModuleTimes(StepTracer):
    """Times the modules of one step down to ``depth``; by device events if ``make_event`` is given."""

    def __init__(
        self,
        root: nn.Module,
        depth: int,
        now_ns: Callable[[], int],
        make_event: Callable[[], DeviceEvent] | None = None,
    ) -> None:
        self.failure = ""
        self.cost_ns = 0
        self._now_ns = now_ns
        self._make_event = make_event
        modules = listed_modules(root, depth)
        self._modules = {path: module for path, module in modules.items() if can_have_hooks(module)}
        self._watch = ModuleWatch(
            self._modules, partial(self._charged, self._entering), partial(self._charged, self._leaving)
        )
        self._running: list[str] = []  # what was current when each running module was entered
        self._is_end_marked = False
        self._current = REST
        self._phase = ""
        self._phases: list[str] = []
        self._last: int | DeviceEvent | None = None
        self._spans: list[tuple[str, str, DeviceEvent, DeviceEvent]] = []
        self._ns: dict[tuple[str, str], float] = {}
        self._calls: dict[str, int] = {}
        self._lock = threading.Lock()

    def open(self) -> None:
        self._charged(self._watch.install)

    def enters(self, name: str) -> None:
        """Begin a part of the step; in manual optimization, backward passes are inside the training step."""
        phase = _PHASES.get(name)
        if phase is not None:
            self._mark(REST)
            self._phases.append(self._phase)
            self._phase, self._current, self._is_end_marked = phase, REST, False
            if self._last is None and not self.failure:
                self._last = self._now()

    def leaves(self, name: str) -> None:
        if name in _PHASES and self._phases:
            self._mark(REST)
            self._phase = self._phases.pop()
            if not self._phase:
                self._last = None

    def close(self) -> bool:
        self._phase, self._last = "", None
        self._phases.clear()
        self._watch.remove()
        return True

    def _entering(self, path: str, args: Any, kwargs: Any) -> None:
        self._calls[path] = self._calls.get(path, 0) + 1
        for tensor in tensors_in((args, kwargs), _DEPTH, in_objects=False, left=search_limit()):
            self._hook(tensor, self._current)
        self._running.append(self._current)
        self._mark(path)

    def _leaving(self, path: str, output: Any) -> None:
        for tensor in tensors_in(output, _DEPTH, in_objects=False, left=search_limit()):
            self._hook(tensor, path)
        self._mark(self._running.pop() if self._running else REST)

    def _hook(self, tensor: torch.Tensor, path: str) -> None:
        """Charge backward to the module at ``path`` once the gradient reaches the node that made this tensor.

        The first call for a node counts: the innermost module that made the tensor.
        """
        node: Any = field(tensor, "grad_fn")
        if node is None or _MARK in node.metadata:
            return
        node.metadata[_MARK] = True

        def reached(gradients: Any) -> None:
            if self._phase == "backward":
                if not self._is_end_marked:
                    self._is_end_marked = True
                    self._charged(self._mark_end)
                self._charged(self._mark, path)

        node.register_prehook(reached)

    def _mark_end(self) -> None:
        """End the last module's backward with the graph, before DDP, whose callback comes later, waits for ranks."""
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(partial(self._charged, self._mark, REST))

    def _mark(self, path: str) -> None:
        """Charge the time since the last mark, and make ``path`` the current module."""
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
        super()._fail(error)
        self._last = None

    def is_resolved(self) -> bool:
        """Return whether the device reached the end of the step; never waits."""
        return not self._spans or self._spans[-1][3].query()

    def times(self) -> dict[str, ModuleTime] | None:
        """Return seconds by path, including ``REST``; None after a failure or before the device is done."""
        if self.failure or not self.is_resolved():
            return None
        for phase, path, begin, end in self._spans:
            ms = begin.elapsed_time(end)
            self._ns[phase, path] = self._ns.get((phase, path), 0) + ms * 1e6
        self._spans.clear()
        spent_s = {key: ns / 1e9 for key, ns in self._ns.items()}
        return {
            path: ModuleTime(
                spent_s.get(("forward", path), 0.0), spent_s.get(("backward", path), 0.0), self._calls.get(path, 0)
            )
            for path in (*self._modules, REST)
        }


_PHASES = {"training_step": "forward", "backward": "backward"}


def mean_times(steps: list[dict[str, ModuleTime]]) -> dict[str, ModuleTime]:
    """Return the mean over several steps; a module that did not run in a step counts as 0 there."""
    means = {}
    for path in {path: None for step in steps for path in step}:
        times = [step[path] for step in steps if path in step]
        forward_s, backward_s = (sum(each[i] for each in times) / len(steps) for i in (0, 1))
        means[path] = ModuleTime(forward_s, backward_s, max(each.calls for each in times))
    return means


def with_times(
    profile: ModelProfile | None, root: nn.Module, device: torch.device, times: dict[str, ModuleTime]
) -> ModelProfile:
    """Return a profile with module times; ``profile`` is None if operations were not counted."""
    replace = msgspec.structs.replace
    if profile is None:
        profile = bare_profile(root, device_name(device))
        profile = replace(profile, missing={"forward_flops": "no step's operations were counted"})
    modules = {module.path: module for module in profile.modules}
    parts = dict(named_modules(root))  # a timed module may have been removed since
    n_parameters = parameters_by_module(root, {*times, *modules})
    for path in times:
        if path not in modules:
            name = type(parts[path]).__name__ if path != REST and path in parts else ""
            modules[path] = ModuleProfile(path=path, class_name=name, n_parameters=n_parameters.get(path, 0))
    timed = []
    for module in modules.values():
        forward_s, backward_s, calls = times.get(module.path, (module.forward_s, module.backward_s, module.calls))
        timed.append(replace(module, forward_s=forward_s, backward_s=backward_s, calls=module.calls or calls))
    timed.sort(key=lambda module: -((module.forward_s or 0.0) + (module.backward_s or 0.0)))
    return replace(profile, modules=tuple(timed))
