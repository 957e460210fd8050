"""Count the hooks of modules and parameters: one that is added again in each step or epoch makes steps longer."""

import os
from collections.abc import Iterator, Mapping
from types import CodeType, MethodType
from typing import Any, NamedTuple

from torch import nn

from lightning_perf.probes import plain
from lightning_perf.probes.base import Probe, RunContext, model_part
from lightning_perf.probes.clock import NEVER
from lightning_perf.probes.model import module_walk
from lightning_perf.records import AddedHooks, Session

_COUNTS_AT = (12, 32, 132, 1032)
"""Steps before which hooks are counted: none of them is sampled with hooks of PerfDoctor's own."""

_LEAST_PER_STEP, _LEAST_ADDED = 0.5, 10
"""Fewest hooks added to one module or parameter that are reported: per step, and in total."""

_LEAST_PER_EPOCH, _LEAST_EQUAL = 0.5, 3
"""Fewest hooks added to one of them per epoch that are reported, and fewest of these with the same code: a callback may
add hooks before each epoch and remove them after it."""

_SLOW_NS = 10**6
"""A count that takes longer leaves its step out of the statistics: going through thousands of modules takes tens of
milliseconds."""

_KINDS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_KINDS_OF_PARAMETERS = ("_backward_hooks", "_post_accumulate_grad_hooks")


class _Count(NamedTuple):
    step: int
    epoch: int
    n_by_place: dict[tuple[str, str], int]
    """Hooks by path and kind."""


class AddedHooksProbe(Probe):
    """Counts the hooks of all modules and parameters before a few steps, and at the end of a fit."""

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
        count = _Count(self._loop.main.n_steps, self._loop.main.epoch, _n_hooks(self._module))
        if self._first is None:
            self._first = count
        elif count.step > self._first.step:
            self._found = _added(self._module, self._first, count)

    def part(self, session: Session) -> Mapping[str, Any]:
        return model_part(session, "added_hooks", self._found)


def _all_hooks(root: nn.Module) -> Iterator[tuple[tuple[str, str], list[Any]]]:
    """Yield the hooks of each module and parameter by path and kind; only those that have some."""
    for path, module in module_walk.named_modules(root):
        for kind in _KINDS:
            yield from _listed(path, kind, plain.attributes(module).get(kind))
    for path, parameter in module_walk.named_parameters(root):
        if plain.is_readable_tensor(parameter):
            for kind in _KINDS_OF_PARAMETERS:
                yield from _listed(path, kind, plain.field(parameter, kind))


def _listed(path: str, kind: str, hooks: Any) -> Iterator[tuple[tuple[str, str], list[Any]]]:
    found = [hook for _, hook in plain.items_of(hooks) or ()]
    if found:
        yield (path, kind), found


def _n_hooks(root: nn.Module) -> dict[tuple[str, str], int]:
    return {place: len(hooks) for place, hooks in _all_hooks(root)}


def _added(root: nn.Module, first: _Count, last: _Count) -> AddedHooks | None:
    """Return the hooks of the module or parameter to which most were added; None if few steps or epochs add hooks."""
    added = {place: n - first.n_by_place.get(place, 0) for place, n in last.n_by_place.items()}
    place = max(added, key=added.__getitem__, default=("", ""))
    n_added = added.get(place, 0)
    if n_added <= 0:
        return None
    hooks = dict(_all_hooks(root))[place]
    code = _code_of(hooks[-1])
    is_per_epoch = n_added < max(_LEAST_ADDED, _LEAST_PER_STEP * (last.step - first.step))
    n_epochs = last.epoch - first.epoch
    if is_per_epoch:
        n_equal = sum(_code_of(hook) is code for hook in hooks) if code is not None else 0
        if n_equal < _LEAST_EQUAL or n_epochs < 2 or n_added < max(2, _LEAST_PER_EPOCH * n_epochs):
            return None
    return AddedHooks(
        n_hooks=last.n_by_place[place],
        per_step=n_added / (last.step - first.step),
        per_epoch=n_added / n_epochs if is_per_epoch else None,
        module=place[0],
        function=code.co_name if code is not None else "",
        site=f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}" if code is not None else "",
    )


def _code_of(hook: Any) -> CodeType | None:
    code = plain.stored(hook.__func__ if type(hook) is MethodType else hook, "__code__")
    return code if type(code) is CodeType else None
