"""Count the hooks of modules: a hook that is added in every step makes each step longer than the one before."""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from torch import nn

from lightning_perf.records import AddedHooks, Session

from . import module_walk, plain
from .base import Probe, RunContext
from .clock import NEVER

_COUNTS_AT = (12, 32, 132, 1032)
"""Steps before which hooks are counted: none of them is sampled with hooks of PerfDoctor's own."""

_LEAST_PER_STEP = 0.2
"""Hooks added per step to one module, at least: a callback may add some before each epoch."""

_SLOW_NS = 10**6
"""A count that takes longer leaves its step out of the statistics: going through thousands of modules takes tens of
milliseconds."""

_KINDS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


class _Count(NamedTuple):
    step: int
    n_by_module: dict[str, int]


class AddedHooksProbe(Probe):
    """Counts the hooks of all modules before a few steps, and at the end of a fit."""

    name = "added_hooks"
    stages = ("fit",)
    after = ("settings", "gradients", "hyperparameters")

    def __init__(self, run: RunContext) -> None:
        self._module, self._loop, self._now_ns = run.pl_module, run.loop, run.now_ns
        self._first: _Count | None = None
        self._found: AddedHooks | None = None
        self._left = list(_COUNTS_AT)

    @property
    def next_step(self) -> int:
        return self._left[0] if self._left else NEVER

    def step_begins(self, batch: Any) -> None:
        while self._left and self._left[0] <= self._loop.main.n_steps:
            self._left.pop(0)
        begin = self._now_ns()
        self._count()
        if self._now_ns() - begin > _SLOW_NS:
            self._loop.main.leave_out()

    def before_report(self, is_last: bool) -> None:
        if is_last:
            self._count()

    def _count(self) -> None:
        count = _Count(self._loop.main.n_steps, _n_hooks(self._module))
        if self._first is None:
            self._first = count
        elif count.step > self._first.step:
            self._found = _added(self._module, self._first, count)

    def part(self, session: Session) -> Mapping[str, Any]:
        settings, replace = session.settings, msgspec.structs.replace
        if self._found is None or settings.model is None:
            return {}
        return {"settings": replace(settings, model=replace(settings.model, added_hooks=self._found))}


def _hooks(module: nn.Module) -> list[Any]:
    own = plain.attributes(module)
    return [hook for kind in _KINDS for _, hook in plain.items_of(own.get(kind)) or ()]


def _n_hooks(root: nn.Module) -> dict[str, int]:
    return {path: n for path, module in module_walk.named_modules(root) if (n := len(_hooks(module)))}


def _added(root: nn.Module, first: _Count, last: _Count) -> AddedHooks | None:
    """Return the hooks of the module that got most of them; None if none got more in most steps."""
    added = {path: n - first.n_by_module.get(path, 0) for path, n in last.n_by_module.items()}
    path = max(added, key=added.__getitem__, default="")
    per_step = added.get(path, 0) / (last.step - first.step)
    if per_step < _LEAST_PER_STEP:
        return None
    module = next(module for name, module in module_walk.named_modules(root) if name == path)
    function = getattr(_hooks(module)[-1], "__func__", _hooks(module)[-1])
    code = plain.stored(function, "__code__")
    return AddedHooks(
        n_hooks=last.n_by_module[path],
        per_step=per_step,
        module=path,
        function=code.co_name if code is not None else "",
        site=f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}" if code is not None else "",
    )
