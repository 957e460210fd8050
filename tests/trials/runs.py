"""Synthetic runs for tests of verdicts and the ladder."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from lightning_perf.records import ArmRun
from lightning_perf.trials.ladder import next_runs
from lightning_perf.trials.rounds import Candidate, Plan, PlannedRun

LOSSES = tuple(2.0 * math.exp(-i / 40) + 0.1 for i in range(64))


def run(
    arm: str,
    level: float = 0.1,
    repeat: int = 0,
    position: int = 0,
    *,
    stage: int = 0,
    losses: tuple[float, ...] = LOSSES,
    **others: object,
) -> ArmRun:
    """Return a successful run with blocks around ``level`` seconds."""
    fields = {"block_means_s": (level, 0.99 * level, 1.01 * level, 1.002 * level), "block_steps": 20, "n_steps": 100}
    return ArmRun(
        arm=arm, repeat=repeat, position=position, stage=stage, losses=losses, **({"status": "ok"} | fields | others)
    )  # type: ignore[arg-type]


def stage(levels: Mapping[str, Sequence[float]], **others: object) -> list[ArmRun]:
    """Return mirrored rounds, with one level per round for each arm."""
    made: list[ArmRun] = []
    for number in range(max(map(len, levels.values()))):
        arms = list(levels)[:: 1 if number % 2 == 0 else -1]
        for arm in arms:
            if number < len(levels[arm]):
                made.append(run(arm, levels[arm][number], number, len(made), **others))
    return made


class Lab:
    """A simulated machine on which treatments have known effects."""

    def __init__(self, effects: Mapping[str, float], plan: Plan | None = None, noise: float = 0.002) -> None:
        self.effects = dict(effects)
        self.failing: dict[str, str] = {}
        self.losses: dict[str, tuple[float, ...]] = {}
        self.pairs: dict[frozenset[str], float] = {}
        self.plan = plan or Plan(candidates=tuple(Candidate(treatment=name) for name in effects))
        self.runs: list[ArmRun] = []
        self.largest = 10**9  # multiple of the batch size that fits in memory; half of a step is a fixed cost
        self._noise = noise
        self._rng = np.random.default_rng(0)

    def make(self, planned: PlannedRun) -> ArmRun:
        """Return one simulated run."""
        place = {"repeat": planned.repeat, "position": planned.position, "stage": planned.stage}
        for treatment in planned.treatments:
            if treatment in self.failing:
                return run(planned.arm, **place, status="failed", reason=self.failing[treatment], block_means_s=())  # type: ignore[arg-type]
        times = next((int(t[12:]) for t in planned.treatments if t.startswith("batch-size=x")), 1)
        if times > self.largest:
            return run(planned.arm, **place, status="failed", reason="out of memory", block_means_s=())  # type: ignore[arg-type]
        speed = math.prod(self.effects.get(t, 1.0) for t in planned.treatments) / (0.5 + 0.5 * times)
        for pair, factor in self.pairs.items():
            speed *= factor if pair <= set(planned.treatments) else 1.0
        level = 0.1 / speed * math.exp(self._noise * float(self._rng.normal()))
        losses = next((self.losses[t] for t in planned.treatments if t in self.losses), LOSSES)
        return run(planned.arm, level, losses=losses, samples_per_step=32.0 * times, **place)  # type: ignore[arg-type]

    def finish(self, at_most: int = 500) -> Lab:
        """Run the whole trial."""
        while planned := next_runs(self.plan, self.runs):
            self.runs += [self.make(each) for each in planned]
            assert len(self.runs) < at_most
        return self
