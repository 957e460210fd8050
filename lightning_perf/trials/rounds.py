"""The plan of a trial and its rounds of interleaved runs: which round is open, and which arms are in it."""

from collections.abc import Sequence
from typing import NamedTuple

from lightning_perf.records import ArmRun, Gain, Record, Safety
from lightning_perf.stats.verdicts import ArmComparison

from .judge import BASELINE, compare_arms, failure_of, measured_pair, rounds_of

MIN_ROUNDS = 2
"""Rounds before an arm may count as settled: one in each direction."""

NARROW_BAND = 0.02
"""Noise below which ``no_change`` settles an arm early; a wider band may become narrower."""


class Candidate(Record, frozen=True, kw_only=True):
    """A treatment that may be tried.

    Attributes:
        treatment: As given, e.g. ``"loader-workers=4"``; also the id of the arm that measures it alone.
        predicted: Speedup that the recommending rule expects; None without one.
        conflicts: Ids of treatments (without value) that it cannot be combined with. Two values of one treatment
            always conflict.
        is_measurement: Whether it is measured alone and never kept.
    """

    treatment: str
    safety: Safety = "exact"
    predicted: Gain | None = None
    conflicts: tuple[str, ...] = ()
    is_measurement: bool = False


class Plan(Record, frozen=True, kw_only=True):
    """What a trial measures.

    Attributes:
        candidates: Best first.
        repeats: Runs per arm and stage, at least 1; fewer if the verdict is clear before.
        extra: Most additional runs of an inconclusive arm, made if they would probably settle it.
        allow: Safeties that the ladder may keep; other treatments are only measured alone.
        has_ladder: Whether treatments are combined after they were measured alone.
        finds_batch: Whether the fastest multiple of the batch size is searched on top of the kept rungs and measured as
            the last rung, whatever ``allow`` says: only set if the user asked for it.
        planned_steps: Optimizer steps of the whole training, over which compile time has to pay; None if unknown.
        capacity_bytes: Memory that batches must fit into, the smallest of any rank; None if unknown.
    """

    candidates: tuple[Candidate, ...] = ()
    repeats: int = 3
    extra: int = 3
    allow: tuple[Safety, ...] = ("exact", "numerics")
    has_ladder: bool = True
    finds_batch: bool = False
    capacity_bytes: int | None = None
    planned_steps: int | None = None


class PlannedRun(Record, frozen=True, kw_only=True):
    """One run to make; fields as in ``ArmRun``, with the treatments to apply in their order."""

    arm: str
    treatments: tuple[str, ...]
    repeat: int
    stage: int
    position: int


def arm_id(treatments: Sequence[str]) -> str:
    """Return the id of an arm: ``"baseline"``, or the treatments joined by ``+``."""
    return "+".join(treatments) or BASELINE


class Round(NamedTuple):
    """An incomplete round: ``number`` rounds of the stage came before it.

    ``members`` are its arms in the order in which they run, ``left`` those that have not run.
    """

    stage: int
    number: int
    members: list[str]
    left: list[str]


def open_round(
    done: Sequence[ArmRun],
    stage: int,
    references: list[str],
    arms: list[str],
    plan: Plan,
    base: Sequence[str],
    band: float | None = None,
) -> Round | None:
    """Return the first incomplete round of a stage; None if all arms are settled or ran often enough.

    Arms are compared with those in ``base``, by the runs of the stage so far. ``band`` is the noise band; None for the
    one that these runs show.
    """
    rounds = rounds_of(done)
    ran = {(run.arm, *at) for run, at in zip(done, rounds, strict=True)}
    active = list(arms)
    for number in range(plan.repeats + plan.extra):
        if not active:
            return None
        members = [*references, *active][:: 1 if number % 2 == 0 else -1]
        left = [arm for arm in members if (arm, stage, number) not in ran]
        if left:
            return Round(stage, number, members, left)
        so_far = [run for run, (s, r) in zip(done, rounds, strict=True) if s == stage and r <= number]
        noise = measured_pair(so_far)[0] if band is None else band
        active = [
            arm
            for arm in active
            if not failure_of(arm, so_far)
            and _is_open(
                compare_arms(so_far, base, arm, noise), noise, number + 1, _n_measured(so_far, base, arm), plan
            )
        ]
    return None


def _n_measured(runs: Sequence[ArmRun], base: Sequence[str], arm: str) -> int:
    """Return the number of measured runs of the arm with the fewest, of ``arm`` and ``base``."""
    measured = [run.arm for run in runs if run.status == "ok" and run.block_means_s]
    return min(measured.count(one) for one in (arm, *base))


def _is_open(comparison: ArmComparison, band: float, n_rounds: int, n_measured: int, plan: Plan) -> bool:
    """Return whether an arm runs again after ``n_rounds``, of which ``n_measured`` were measured."""
    if n_rounds < min(MIN_ROUNDS, plan.repeats):
        return True
    if comparison.verdict in ("improved", "regressed"):
        return False
    if n_rounds < plan.repeats:
        return comparison.verdict == "inconclusive" or band > NARROW_BAND
    if plan.repeats < MIN_ROUNDS or comparison.verdict != "inconclusive":
        return False
    if n_measured < plan.repeats:
        return True  # repeat a run that was never steady
    needed = comparison.repeats_needed
    return needed is not None and needed <= plan.repeats + plan.extra - n_rounds
