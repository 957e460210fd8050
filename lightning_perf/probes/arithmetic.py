"""Count the operations of one training step.

The step computes the same results, but takes longer: it counts in no statistic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lightning_perf.records import Ceilings, ModelProfile

from . import ceilings
from .clock import NEVER
from .compiler import has_compiled
from .flops import ArithmeticCounter, Direction
from .loop import LoopProbe
from .machine import device_name
from .model import is_compiled
from .replay import CallLog
from .steps import size_reader

FIRST_STEP = 10
"""The index of the counted step: the first steps allocate and tune, others are sampled, and very short runs are
spared."""

_ATTEMPTS = 3
_DIRECTIONS: dict[str, Direction | None] = {
    "training_step": "forward",
    "backward": "backward",
    "zero_grad": None,
    "optimizer_step": None,
}
_STRATEGIES = ("SingleDeviceStrategy", "DDPStrategy")
MAX_CEILING_SHARE = 0.05
"""Share of the run's time that measuring the device once, after the last step, may take."""
_CEILINGS_TAKE_S = 8.0  # the budget, and a process that imports torch


class ArithmeticProbe:
    """Counts one step. Made in the Trainer's ``setup``.

    ``wants_ceilings`` allows measuring the device after the last step.
    """

    def __init__(
        self,
        trainer: Any,
        pl_module: Any,
        loop: LoopProbe,
        now_ns: Callable[[], int],
        depth: int = 1,
        wants_ceilings: bool = True,
    ) -> None:
        self.missing: dict[str, str] = {}
        self.is_done = False
        self.own_ns = 0
        self.log: CallLog | None = None
        """Operators of the counted step; None before it."""
        self._trainer, self._module, self._loop = trainer, pl_module, loop
        self._now_ns = now_ns
        self._depth = depth
        self._wants_ceilings = wants_ceilings
        self._device: torch.device = trainer.strategy.root_device
        self._counter: ArithmeticCounter | None = None
        self._parts: list[str] = []
        self._n_samples: int | None = None
        self._attempts = 0
        self._profile: ModelProfile | None = None
        self._ceilings: Ceilings | None = None
        self._has_looked_up = False

    @property
    def next_step(self) -> int:
        """Index of the next step that this probe must observe."""
        return NEVER if self.is_done else FIRST_STEP

    def batch_begins(self, batch: Any) -> None:
        """Handle the start of a step whose batch is on the device."""
        if self.is_done or self._loop.main.n_steps < FIRST_STEP or self._counter is not None:
            return
        if self._loop.timeline.edges is not None or self._loop.is_profiling:
            return  # another probe samples this step
        reason = self._refusal()
        if reason:
            self.missing["model_profile"] = reason
            self.is_done = True
            return
        self._attempts += 1
        self.is_done = self._attempts >= _ATTEMPTS
        size = size_reader(batch)(batch)
        self._n_samples = size if size >= 0 else None
        begin = self._now_ns()
        self._counter = ArithmeticCounter(
            self._module,
            self._depth,
            self._now_ns,
            times_operators=self._device.type == "cpu",
            log=CallLog(self._n_samples or 0),
        )
        self.own_ns += self._now_ns() - begin
        self._parts.clear()
        self._loop.main.leave_out()
        self._loop.watch_edges(self)

    def _refusal(self) -> str:
        strategy = type(self._trainer.strategy).__name__
        if has_compiled() or is_compiled(self._module):
            return "operators of a compiled model cannot be counted here; use quick_profile"
        if strategy not in _STRATEGIES:
            return f"{strategy} shards or moves tensors by itself: only part of the operations would be counted"
        return ""

    def enters(self, name: str) -> None:
        """Handle the start of a part of the step; in manual optimization, parts are inside the training step."""
        counter = self._counter
        if counter is None or name not in _DIRECTIONS:
            return
        self._parts.append(name)
        self._turn_to(counter)

    def leaves(self, name: str) -> None:
        """Handle the end of a part of the step."""
        counter = self._counter
        if counter is None or name not in self._parts:
            return
        while self._parts.pop() != name:
            pass
        self._turn_to(counter)

    def _turn_to(self, counter: ArithmeticCounter) -> None:
        """Count as the innermost part requires: forward, backward, or not at all."""
        direction = _DIRECTIONS[self._parts[-1]] if self._parts else None
        if direction is None:
            counter.__exit__()
        else:
            counter.direction = direction
            counter.__enter__()

    def batch_ends(self) -> None:
        """Handle the end of a step."""
        counter = self._counter
        if counter is None:
            return
        counter.__exit__()
        if self._loop.timeline.edges is self:
            self._loop.watch_edges(None)
        if counter.is_entered:  # another mode is above it: try again after each step
            self.is_done = False
            return
        self._counter = None
        self.own_ns += counter.own_ns
        profile = counter.profile(device_name(self._device), self._n_samples, self._loop.main.n_steps)
        if counter.failure:
            self.missing["model_profile"] = counter.failure
            self.is_done = True
        elif counter.has_backward or self._attempts >= _ATTEMPTS:
            self._profile, self.log, self.is_done = profile, counter.log, True

    def run_ends(self) -> None:
        """Measure the device if that was never done and the run was long enough."""
        if self._profile is None or not self._wants_ceilings or self._look_up() is not None:
            return
        wall_s = self._loop.wall_ns() / 1e9
        if self._trainer.world_size > 1:
            self.missing["model_profile.ceilings"] = "with several ranks the device is not measured after the run"
        elif MAX_CEILING_SHARE * wall_s < _CEILINGS_TAKE_S:
            self.missing["model_profile.ceilings"] = (
                f"this device was not measured yet, which takes some seconds: too much for a run of {wall_s:.0f} s; "
                "lightning_perf.measure_ceilings() does it once for all"
            )
        else:
            self._ceilings, reason = ceilings.measured_in_child(self._device)
            if reason:
                self.missing["model_profile.ceilings"] = reason

    def close(self) -> None:
        """Restore everything. Can be called twice."""
        counter = self._counter
        if counter is not None:
            counter.__exit__()
            self._counter = None
            if self._loop.timeline.edges is self:
                self._loop.watch_edges(None)

    def _look_up(self) -> Ceilings | None:
        if not self._has_looked_up:
            self._has_looked_up = True
            self._ceilings = ceilings.cached(self._device)
        return self._ceilings

    def record(self) -> tuple[ModelProfile | None, Ceilings | None]:
        """Return what was counted and the device's ceilings; None where unknown."""
        if self._profile is None:
            self.missing.setdefault("model_profile", "no step was counted: the run was too short")
            return None, None
        found = self._look_up()
        if found is None and not self._wants_ceilings:
            self.missing["model_profile.ceilings"] = "ceilings=False, and this device was not measured before"
        return self._profile, found
