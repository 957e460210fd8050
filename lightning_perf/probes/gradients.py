"""Watch whether gradients are cleared between the steps of each optimizer, and how, and which ones none uses.

No value of a tensor is read, so nothing waits for a device.
"""

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import torch
from torch import nn

from lightning_perf.records import Session
from lightning_perf.seams import remove_hook

from . import plain
from .base import Probe, RunContext
from .code_lines import user_site
from .model import parameters_of, unwrap
from .module_walk import named_parameters

N_WATCHED_STEPS = 20
"""A forgotten zero_grad shows at every step; twenty also cover schedules that clear every few steps."""


_N_TIMED_PASSES = 3


class _GradientState:
    """The state of one optimizer's gradients.

    ``state`` is ``unknown``, ``stale`` since a step, ``dirty`` (added to while stale) or ``cleared``.
    """

    def __init__(self) -> None:
        self.parameter: torch.Tensor | None = None
        self.seen: tuple[int, int] | None = None
        self.state = "unknown"
        self.keeps_tensors: bool | None = None
        self.n_steps = 0
        self.n_zero_grads = 0
        self.n_clearings = 0
        self.n_dropping = 0
        self.added_at = self.dropping_backward = ""
        self.n_judged = 0
        self.n_uncleared = 0

    @property
    def is_done(self) -> bool:
        return max(self.n_steps, self.n_zero_grads) >= N_WATCHED_STEPS

    @property
    def has_stepped(self) -> bool:
        """Whether the optimizer has stepped; of automatic optimization only the clearing before each step is known."""
        return self.n_steps >= 1 or self.n_zero_grads >= 2

    def remember(self, optimizer: Any) -> None:
        """Mark the current gradients as used; the first parameter with a gradient represents all."""
        self.parameter = next((p for p in parameters_of(optimizer) if plain.gradient_of(p) is not None), None)
        self.seen = _identity(self.parameter)
        self.state = "unknown" if self.parameter is None else "stale"

    def before_backward(self) -> None:
        now = _identity(self.parameter)
        if self.state not in ("stale", "dirty") or now == self.seen:
            return
        self.n_clearings += 1
        if self.state == "dirty":  # added since the step, and never used
            self.n_dropping += 1
            self.dropping_backward = self.added_at
        self.state = "cleared"
        self.keeps_tensors = now is not None

    def after_backward(self) -> None:
        now = _identity(self.parameter)
        if self.state in ("stale", "dirty") and now != self.seen:
            self.state, self.seen, self.added_at = "dirty", now, user_site()


class _UnusedGradients:
    """The gradients of parameters that no optimizer has, found after the first step of an optimizer.

    They are unused if the next backward pass still finds them: a loop of the user's that uses them clears them. What a
    backward pass on a CPU does after the last gradient of an optimizer's parameters is then timed in a few passes.
    """

    def __init__(self) -> None:
        self._found: list[tuple[str, torch.Tensor]] | None = None
        self._seen: tuple[int, int] | None = None
        self._owned: list[torch.Tensor] = []
        self._hooked: list[torch.Tensor] = []
        self._hook = self._note  # one object, which ``close`` finds
        self._begin_ns = self._last_ns = 0
        self._fractions: list[float] = []
        self.summary: dict[str, Any] = {}

    def after_backward(self, module: Any, optimizers: list[Any]) -> None:
        if self._hooked:
            self._time_rest()
        if self._found is not None or not isinstance(module, nn.Module):
            return
        self._owned = [parameter for optimizer in optimizers for parameter in parameters_of(unwrap(optimizer))]
        owned = {id(parameter) for parameter in self._owned}
        named = list(named_parameters(module))
        # A sharding strategy may give the optimizer other parameters than the module's.
        is_known = bool(owned) and owned <= {id(parameter) for _, parameter in named}
        unowned = [(name, one) for name, one in named if id(one) not in owned] if is_known else []
        self._found = [(name, one) for name, one in unowned if plain.gradient_of(one) is not None]
        self._seen = _identity(self._found[0][1]) if self._found else None

    def before_backward(self) -> None:
        if self._found is not None and not self.summary:
            self._judge(self._found)
        if self._hooked:
            self._begin_ns = self._last_ns = time.perf_counter_ns()

    def close(self) -> None:
        """Remove the hooks, and keep no parameter."""
        for parameter in self._hooked:
            hooks: Any = parameter._backward_hooks
            if hooks is not None:
                remove_hook([hooks], self._hook)
            if not hooks:
                parameter._backward_hooks = None  # as before the first hook
        self._hooked, self._owned, self._found = [], [], []

    def _judge(self, found: list[tuple[str, torch.Tensor]]) -> None:
        unused = found if found and _identity(found[0][1]) == self._seen else []
        self._found = []
        sizes: Counter[str] = Counter()
        for name, parameter in unused:
            sizes[name.partition(".")[0]] += math.prod(plain.field(parameter, "shape"))
        self.summary = {
            "n_unused_gradients": len(unused),
            "n_unused_elements": sizes.total(),
            "unused_gradients_in": max(sizes, key=sizes.__getitem__, default=""),
        }
        if unused and all(_is_trained_on_cpu(one) for one in self._owned):
            self._hooked = self._owned
            for one in self._hooked:
                one.register_hook(self._hook)  # type: ignore[no-untyped-call]

    @torch.utils.hooks.unserializable_hook  # type: ignore[untyped-decorator]  # no warning where it is pickled
    def _note(self, gradient: torch.Tensor) -> None:
        self._last_ns = time.perf_counter_ns()

    def _time_rest(self) -> None:
        now_ns = time.perf_counter_ns()
        if self._last_ns > self._begin_ns:
            self._fractions.append((now_ns - self._last_ns) / (now_ns - self._begin_ns))
        if len(self._fractions) >= _N_TIMED_PASSES:
            self.summary["unused_backward_fraction"] = min(self._fractions)
            self.close()


def _is_trained_on_cpu(parameter: torch.Tensor) -> bool:
    return plain.is_plain_tensor(parameter) and parameter.requires_grad and parameter.device.type == "cpu"


class ZeroGradWatch(Probe):
    """Watches in the first ``N_WATCHED_STEPS`` steps of each optimizer whether and how its gradients are cleared.

    It compares identity and version counter of one gradient per optimizer. Gradients used by a step are stale; a
    backward pass that adds to them makes them dirty; a change before a backward pass means that they were cleared. An
    optimizer that steps on dirty gradients did not clear them. Adding to stale gradients alone is correct: in
    adversarial training one network's pass adds to the other's gradients, which are cleared later. These count as
    dropped. Steps between which no backward pass was reported are not judged.
    """

    name = "gradients"
    stages = ("fit",)
    after = ("settings",)

    def __init__(self, run: RunContext) -> None:
        self._context = run
        self._optimizers: dict[int, tuple[Any, _GradientState]] = {}
        self._unused = _UnusedGradients()

    def part(self, session: Session) -> Mapping[str, Any]:
        settings, replace = session.settings, msgspec.structs.replace
        model, optimizers = settings.model, self._context.trainer.optimizers
        if model is None or len(model.optimizers) != len(optimizers):
            return {}
        pairs = zip(model.optimizers, optimizers, strict=True)
        seen = tuple(replace(one, **self.summary(optimizer)) for one, optimizer in pairs)
        return {"settings": replace(settings, model=replace(model, optimizers=seen, **self._unused.summary))}

    def close(self) -> None:
        self._unused.close()

    @property
    def is_done(self) -> bool:
        """Whether every optimizer seen was watched long enough; False before the first."""
        return bool(self._optimizers) and all(watched.is_done for _, watched in self._optimizers.values())

    def after_step(self, optimizer: Any) -> None:
        """Handle the end of ``optimizer.step``, before anything can clear its gradients."""
        optimizer, watched = self._entry(optimizer)
        if watched.is_done:
            return
        if watched.n_steps and watched.state in ("cleared", "dirty"):
            watched.n_judged += 1
            watched.n_uncleared += watched.state == "dirty"
        watched.n_steps += 1
        watched.remember(optimizer)
        self._release(watched)

    def before_backward(self) -> None:
        self._unused.before_backward()
        for watched in self._active():
            watched.before_backward()

    def after_backward(self) -> None:
        """Handle the end of a backward pass, before gradients are clipped or unscaled."""
        if self.is_done and len(self._optimizers) >= len(self._context.trainer.optimizers):
            self._context.probes.leave_backward(self)
        if any(watched.has_stepped for _, watched in self._optimizers.values()):
            self._unused.after_backward(self._context.pl_module, self._context.trainer.optimizers)
        for watched in self._active():
            watched.after_backward()

    def before_zero_grad(self, optimizer: Any) -> None:
        optimizer, watched = self._entry(optimizer)
        if watched.is_done:
            return
        watched.n_zero_grads += 1
        if watched.state != "stale" and not (watched.state == "dirty" and watched.n_steps):
            # Without a notification of steps, these are the gradients that the last step used.
            watched.remember(optimizer)
        self._release(watched)

    def summary(self, optimizer: Any) -> dict[str, Any]:
        """Return the watched fields of ``OptimizerSettings``; None for what was not seen."""
        _, watched = self._optimizers.get(id(unwrap(optimizer)), (None, _GradientState()))
        return {
            "zero_grad_keeps_tensors": watched.keeps_tensors,
            "steps_without_zero_grad": watched.n_uncleared if watched.n_judged else None,
            "n_steps_watched": watched.n_judged,
            "n_clearings": watched.n_clearings,
            "n_clearings_dropping": watched.n_dropping,
            "dropping_backward": watched.dropping_backward,
        }

    def _entry(self, optimizer: Any) -> tuple[Any, _GradientState]:
        optimizer = unwrap(optimizer)
        # Holding the optimizer keeps its id from being given to another.
        return self._optimizers.setdefault(id(optimizer), (optimizer, _GradientState()))

    def _active(self) -> Iterator[_GradientState]:
        return (watched for _, watched in self._optimizers.values() if not watched.is_done)

    @staticmethod
    def _release(watched: _GradientState) -> None:
        if watched.is_done:
            watched.parameter = None


def _identity(parameter: torch.Tensor | None) -> tuple[int, int] | None:
    """Return which gradient a parameter has and how often it was written in place; None without one."""
    gradient = None if parameter is None else plain.gradient_of(parameter)
    return None if gradient is None else (id(gradient), plain.field(gradient, "_version"))
