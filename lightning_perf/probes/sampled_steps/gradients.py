"""Watch whether and how gradients are cleared between the steps of each optimizer, and which none uses.

No value of a tensor is read, so nothing waits for a device.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
from torch import nn

from lightning_perf.probes import plain
from lightning_perf.probes.base import Probe, RunContext
from lightning_perf.probes.model.module_walk import named_parameters
from lightning_perf.probes.model.summary import parameters_of, unwrap
from lightning_perf.records import Session

from .code_lines import user_site

N_WATCHED_STEPS = 20
"""A forgotten zero_grad shows at every step; twenty also cover schedules that clear every few steps."""

_MIN_BATCHES = 10
"""Of the watched batches, those whose backward pass must have computed a gradient that counts as unused."""

_MAX_BATCHES = 200
"""Batches after which unused gradients are no longer looked for, if some optimizer has not stepped often enough."""


@dataclass(slots=True)
class _GradientState:
    """The state of one optimizer's gradients.

    ``state`` is ``unknown``, ``stale`` since a step, ``dirty`` (added to while stale) or ``cleared``. ``adding`` are
    the lines of the passes that have added to them since they were used or cleared, ``dropped`` those of passes whose
    gradients were cleared before a step.
    """

    parameter: torch.Tensor | None = None
    seen: tuple[int, int] | None = None
    before: tuple[int, int] | None = None
    state: str = "unknown"
    adding: list[str] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    used: set[str] = field(default_factory=set)
    first_batch: int | None = None
    n_batches: int = 0
    keeps_tensors: bool | None = None
    n_steps: int = 0
    n_zero_grads: int = 0
    n_clearings: int = 0
    n_dropping: int = 0
    n_judged: int = 0
    n_uncleared: int = 0

    @property
    def is_done(self) -> bool:
        return max(self.n_steps, self.n_zero_grads) >= N_WATCHED_STEPS

    @property
    def has_stepped(self) -> bool:
        """Whether the optimizer has stepped; of automatic optimization only the clearing before each step is known."""
        return self.n_steps >= 1 or self.n_zero_grads >= 2

    @property
    def dropping_backward(self) -> str:
        """The line with most of the dropped passes; empty without one."""
        return max(self.dropped, key=lambda line: self.dropped[line], default="")

    @property
    def dropped_per_batch(self) -> float | None:
        """Dropped passes of that line per batch; None without one, or if some of the line's passes were used."""
        line = self.dropping_backward
        return self.dropped[line] / self.n_batches if line and line not in self.used and self.n_batches else None

    def remember(self, optimizer: Any, n_batches: int) -> None:
        """Mark the current gradients as used; the first parameter with a gradient represents all."""
        self.used.update(self.adding)
        self.adding.clear()
        if self.first_batch is None:
            self.first_batch = n_batches
        self.parameter = next((p for p in parameters_of(optimizer) if plain.gradient_of(p) is not None), None)
        self.seen = _identity(self.parameter)
        self.state = "unknown" if self.parameter is None else "stale"

    def before_backward(self, n_batches: int) -> None:
        now = self.before = _identity(self.parameter)
        if self.state not in ("stale", "dirty") or now == self.seen:
            return
        self.n_clearings += 1
        if self.state == "dirty":  # added since the step, and never used
            self.n_dropping += 1
            self.dropped.update(self.adding)
        self.adding.clear()
        self.n_batches = n_batches - (self.first_batch or 0)
        self.state = "cleared"
        self.keeps_tensors = now is not None

    def after_backward(self) -> None:
        now = _identity(self.parameter)
        if self.state != "unknown" and now != self.before:
            self.adding.append(user_site())
        if self.state in ("stale", "dirty") and now != self.seen:
            self.state, self.seen = "dirty", now


@dataclass(slots=True)
class _Unowned:
    """A parameter that no optimizer has.

    Attributes:
        seen: Its gradient after the last backward pass.
        version: How often the parameter was written in place, when it was found.
        n_computed: Backward passes that have changed its gradient.
    """

    parameter: torch.Tensor
    seen: tuple[int, int] | None
    version: int
    n_computed: int = 0


class _UnusedGradients:
    """Watches the gradients of parameters that no optimizer has, from the first step of an optimizer on.

    A parameter is left out once its gradient has changed between two backward passes, or if it was changed itself: then
    code of the user's applies and clears the gradient. A copy of a trained parameter is changed without its gradient:
    target networks and averages of weights.
    """

    def __init__(self) -> None:
        self._watched: dict[str, _Unowned] | None = None  # by path in the module
        self._first_batch = 0
        self._is_concluded = False
        self._unused: set[str] = set()
        self._fields: dict[str, Any] = {}

    def before_backward(self) -> None:
        if self._watched:
            self._watched = {name: one for name, one in self._watched.items() if _identity(one.parameter) == one.seen}

    def after_backward(self, module: Any, optimizers: list[Any], n_batches: int) -> None:
        if self._watched is None:
            self._first_batch = n_batches
            self._watched = {
                name: _Unowned(one, _identity(one), plain.field(one, "_version"))
                for name, one in unowned_parameters(module, optimizers)
                if one.requires_grad and plain.gradient_of(one) is not None
            }
        if n_batches - self._first_batch > _MAX_BATCHES:
            self.forget()
        for watched in self._watched.values():
            now = _identity(watched.parameter)
            watched.n_computed += now != watched.seen
            watched.seen = now

    def conclude(self, module: Any, optimizers: list[Any], n_batches: int) -> None:
        """Keep what was found, unless most optimizer steps were of one batch, as LBFGS takes them."""
        found, self._watched = self._watched or {}, {}
        was_concluded, self._is_concluded = self._is_concluded, True
        if was_concluded or n_batches - self._first_batch < _MIN_BATCHES:
            return
        unowned = dict(unowned_parameters(module, optimizers))
        unused = {
            name: math.prod(plain.field(one.parameter, "shape"))
            for name, one in found.items()
            if name in unowned and one.n_computed >= _MIN_BATCHES
        }
        trained = {name: one for name, one in named_parameters(module) if name not in unowned} if unused else {}
        holding = {path for name in trained for path in _paths(name)}  # a set: there may be thousands of each
        outermost = {name: next(path for path in _paths(name) if path not in holding) for name in unused}
        for name, path in outermost.items():
            one = found[name]
            is_written = plain.field(one.parameter, "_version") != one.version
            if is_written and not _is_copy(name.removeprefix(path), one.parameter, trained):
                del unused[name]
        sizes: Counter[str] = Counter()
        for name, size in unused.items():
            sizes[outermost[name]] += size
        where = max(sizes, key=sizes.__getitem__, default="")
        self._unused = set(unused)
        self._fields = {
            "n_unused_gradients": len(unused),
            "n_unused_elements": sizes.total(),
            "unused_gradients_in": where,
            "n_unused_elements_in": sizes[where],
        }

    def summary(self, module: Any, optimizers: list[Any]) -> dict[str, Any]:
        """Return the fields of ``ModelSettings``; none once an optimizer got some of the parameters."""
        is_current = not self._unused or self._unused <= dict(unowned_parameters(module, optimizers)).keys()
        return self._fields if is_current else {}

    def forget(self) -> None:
        self._watched = {}


def unowned_parameters(module: Any, optimizers: list[Any]) -> list[tuple[str, torch.Tensor]]:
    """Return the parameters that no optimizer has, by path; none if a sharding strategy replaces parameters."""
    owned = {id(parameter) for optimizer in optimizers for parameter in parameters_of(unwrap(optimizer))}
    named = list(named_parameters(module)) if isinstance(module, nn.Module) else []
    is_known = (
        bool(owned) and owned <= {id(one) for _, one in named} and all(plain.is_plain_tensor(p) for _, p in named)
    )
    return [(name, one) for name, one in named if id(one) not in owned] if is_known else []


def _is_copy(within: str, parameter: torch.Tensor, trained: Mapping[str, torch.Tensor]) -> bool:
    """Return whether a trained parameter has the same shape and the same path within another module."""
    shape = plain.field(parameter, "shape")
    return bool(within) and any(
        other.endswith(within) and plain.field(one, "shape") == shape for other, one in trained.items()
    )


def _paths(name: str) -> Iterator[str]:
    """Yield the paths of the modules around a parameter, outermost first, and its own."""
    parts = name.split(".")
    return (".".join(parts[:n]) for n in range(1, len(parts) + 1))


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
        unused = self._unused.summary(self._context.pl_module, optimizers)
        return {"settings": replace(settings, model=replace(model, optimizers=seen, **unused))}

    def close(self) -> None:
        self._unused.forget()

    abandon = close

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
        watched.remember(optimizer, self._context.loop.main.n_steps)
        self._release(watched)

    def before_backward(self) -> None:
        self._unused.before_backward()
        for watched in self._active():
            watched.before_backward(self._context.loop.main.n_steps)

    def after_backward(self) -> None:
        """Handle the end of a backward pass, before gradients are clipped or unscaled."""
        module, optimizers = self._context.pl_module, self._context.trainer.optimizers
        n_batches = self._context.loop.main.n_steps
        if any(watched.has_stepped for _, watched in self._optimizers.values()):
            self._unused.after_backward(module, optimizers, n_batches)
        if self.is_done and len(self._optimizers) >= len(optimizers):
            self._context.probes.leave_backward(self)
            self._unused.conclude(module, optimizers, n_batches)
        for watched in self._active():
            watched.after_backward()

    def before_zero_grad(self, optimizer: Any) -> None:
        optimizer, watched = self._entry(optimizer)
        if watched.is_done:
            return
        watched.n_zero_grads += 1
        if watched.state != "stale" and not (watched.state == "dirty" and watched.n_steps):
            # Without a notification of steps, these are the gradients that the last step used.
            watched.remember(optimizer, self._context.loop.main.n_steps)
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
            "dropped_per_batch": watched.dropped_per_batch,
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
