"""What a trial is to find out, and the runs that it plans."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_perf.records import Gain, Safety
from lightning_perf.records.base import Record

from .judge import BASELINE


class Candidate(Record, frozen=True, kw_only=True):
    """A treatment that may be tried.

    Attributes:
        treatment: As given, e.g. ``"loader-workers=4"``; also the id of the arm that measures it alone.
        safety: Of the treatment.
        predicted: What the rule that prescribed it expects; None where none did.
        conflicts: Ids of treatments (without spec) that it cannot be combined with. Two specs of one treatment
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
        repeats: Runs an arm in a stage, at least 1; fewer where the verdict is clear before.
        extra: Repeats beyond those for an arm that is inconclusive where so many would probably settle it.
        allow: Safeties that the ladder may keep; others are measured alone only.
        has_ladder: Whether treatments are combined after they were measured alone.
        finds_batch: Whether the fastest multiple of the batch size is looked for on top of the rungs kept, and
            measured as the last rung, whatever ``allow`` says: to be set only where the user asked for it.
        capacity_bytes: Memory that batches must fit into, the smallest of any rank; None where it is not known.
    """

    candidates: tuple[Candidate, ...] | None = None
    repeats: int = 3
    extra: int = 3
    allow: tuple[Safety, ...] = ("exact", "numerics")
    has_ladder: bool = True
    finds_batch: bool = False
    capacity_bytes: int | None = None


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
