"""The strategy of a trial: given what was planned and what has run, what to run next and what it comes to.

Pure: the runner asks ``next_runs`` until it answers with nothing, and may stop and ask again from the records on disk.
"""

from __future__ import annotations

from collections.abc import Sequence

from lightning_perf.records import ArmRun, Gain, Rung, Safety
from lightning_perf.records.base import Record

BASELINE = "baseline"
AGAIN = "baseline-again"
MIN_REPEATS = 2
"""Repeats before an arm may count as settled."""


class Candidate(Record, frozen=True, kw_only=True):
    """A treatment that may be tried.

    Attributes:
        treatment: As given, e.g. ``"loader-workers=4"``; also the id of the arm that measures it alone.
        safety: Of the treatment.
        predicted: What the rule that prescribed it expects; None where none did.
        conflicts: Ids of treatments (without dose) that it cannot be combined with. Two doses of one treatment
            conflict without being named.
    """

    treatment: str
    safety: Safety = "exact"
    predicted: Gain | None = None
    conflicts: tuple[str, ...] = ()


class Plan(Record, frozen=True, kw_only=True):
    """What a trial is to find out.

    Attributes:
        candidates: Best first; None while the baseline has not been diagnosed, which asks for the baseline alone.
        repeats: Runs an arm in a stage at most.
        allow: Safeties that the ladder may keep; others are measured alone only.
        has_ladder: Whether treatments are combined after they were measured alone.
    """

    candidates: tuple[Candidate, ...] | None = None
    repeats: int = 3
    allow: tuple[Safety, ...] = ("exact", "numerics")
    has_ladder: bool = True


class PlannedRun(Record, frozen=True, kw_only=True):
    """One run to make.

    Attributes:
        arm: Id of the arm.
        treatments: To be applied, in this order; empty for the baseline.
        repeat: How many runs of this arm came before: unique with ``arm``, for file names.
        stage: To be copied to ``ArmRun.stage``.
        position: To be copied to ``ArmRun.position``.
    """

    arm: str
    treatments: tuple[str, ...]
    repeat: int
    stage: int
    position: int


def arm_id(treatments: Sequence[str]) -> str:
    """``"baseline"``, or the treatments joined by ``+``."""
    return "+".join(treatments) or BASELINE


def next_runs(plan: Plan, runs: Sequence[ArmRun]) -> tuple[PlannedRun, ...]:
    """What is left of the current round, in order; empty when the trial is done.

    Args:
        plan: The plan.
        runs: Made so far, in order. Interrupted ones are made again; an arm that failed is not.
    """
    raise NotImplementedError


def ladder(plan: Plan, runs: Sequence[ArmRun]) -> tuple[Rung, ...]:
    """What the treatments add to one another, the baseline first; rungs left out are among them with their reason."""
    raise NotImplementedError


def best(rungs: Sequence[Rung]) -> str:
    """Id of the arm that the ladder ends with."""
    return next((rung.arm for rung in reversed(rungs) if rung.is_kept), BASELINE)
