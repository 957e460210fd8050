"""Rounds of interleaved runs: which is open, and which arms still take part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from lightning_perf.records import ArmRun
from lightning_perf.stats.verdicts import ArmComparison

from .judge import AGAIN, BASELINE, compare_arms, failure_of, measured_pair, rounds_of
from .planned import Plan

MIN_ROUNDS = 2
"""Rounds before an arm may count as settled: one forth, one back."""

NARROW_BAND = 0.02
"""Noise below which ``no_change`` settles an arm early; a wider band may yet become narrower."""


class Round(NamedTuple):
    """A round that is not complete.

    Attributes:
        stage: Its stage.
        number: Rounds of the stage before it.
        members: Arms in the order in which they run.
        left: Those that have not run.
    """

    stage: int
    number: int
    members: list[str]
    left: list[str]


def open_round(
    done: list[ArmRun],
    stage: int,
    references: list[str],
    arms: list[str],
    plan: Plan,
    compared: Callable[[Sequence[ArmRun], str], tuple[ArmComparison, float]],
    against: Sequence[str] = (),
) -> Round | None:
    """The first round of a stage that is not complete; None when all arms are settled or ran often enough.

    Args:
        done: Finished runs.
        stage: Which.
        references: Arms of every round.
        arms: Arms in question.
        plan: Tells how many rounds.
        compared: What the stage's runs so far say of an arm, and the noise band.
        against: Those of the references that it is compared with; all where empty.
    """
    rounds = rounds_of(done)
    ran = {(run.arm, *at) for run, at in zip(done, rounds, strict=True)}
    active = list(arms)
    for number in range(plan.repeats + plan.extra):
        members = [*references, *active][:: 1 if number % 2 == 0 else -1]
        left = [arm for arm in members if (arm, stage, number) not in ran]
        if active and left:
            return Round(stage, number, members, left)
        first = [run for run, (s, r) in zip(done, rounds, strict=True) if s == stage and r <= number]
        active = [
            a
            for a in active
            if not failure_of(a, first)
            and _is_open(*compared(first, a), number + 1, _n_measured(first, against or references, a), plan)
        ]
    return None


def _n_measured(first: Sequence[ArmRun], references: Sequence[str], arm: str) -> int:
    """Figures of that one among an arm and its references that has fewest."""
    told = [run.arm for run in first if run.status == "ok" and run.block_means_s]
    return min(told.count(one) for one in (arm, *references))


def _is_open(comparison: ArmComparison, band: float, n_rounds: int, n_measured: int, plan: Plan) -> bool:
    """Whether an arm runs once more after so many rounds, of which so many gave figures."""
    if n_rounds < min(MIN_ROUNDS, plan.repeats):
        return True
    if comparison.call in ("improved", "regressed"):
        return False
    if n_rounds < plan.repeats:
        return comparison.call == "inconclusive" or band > NARROW_BAND
    if plan.repeats < MIN_ROUNDS:
        return False
    if comparison.call == "inconclusive" and n_measured < plan.repeats:
        return True  # a run that never was steady is made again
    needed = comparison.repeats_needed
    return comparison.call == "inconclusive" and needed is not None and needed <= plan.repeats + plan.extra - n_rounds


def compared_alone(first: Sequence[ArmRun], arm: str) -> tuple[ArmComparison, float]:
    band, _ = measured_pair(first)
    return compare_arms(first, [BASELINE, AGAIN], arm, band), band
