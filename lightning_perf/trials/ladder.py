"""The strategy of a trial: given what was planned and what has run, what to run next and what it comes to.

Pure: the runner asks ``next_runs`` until it answers with nothing, and may stop and ask again from the records on disk.

Stage 0 measures each treatment alone, between the two halves of an A/A pair. Then the treatments that gained are put
on top of one another, the strongest first, one stage a rung, each beside the baseline and the rung below; last, where
the rungs kept have moved the bottleneck, those that gained nothing alone. Rounds are mirrored (A B C, C B A, …), so
that a machine that drifts drifts alike for all arms of a stage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from lightning_perf.records import ArmRun, ArmVerdict, Gain, Interval, Rung, Safety
from lightning_perf.records.base import Record
from lightning_perf.stats.verdicts import Comparison

from .fastest_batch import TREATMENT, knee, next_size, points_of, resized
from .judge import (
    AGAIN,
    BASELINE,
    SEARCH,
    Judgement,
    compare_arms,
    failure_of,
    judge,
    measured_pair,
    rounds_of,
    treatments_of,
)

__all__ = [
    "AGAIN", "BASELINE", "Candidate", "Plan", "PlannedRun", "arm_id", "best", "ladder", "next_runs", "runs_left",
]  # fmt: skip

MIN_ROUNDS = 2
"""Rounds before an arm may count as settled: one forth, one back."""

NARROW_BAND = 0.02
"""Noise below which ``no_change`` settles an arm early; a wider band may yet become narrower."""

MOVED = 1.1
"""Speed-up of the rungs kept from which treatments that gained nothing alone are tried again on top: the bottleneck
may have moved to what they cure."""


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


def next_runs(plan: Plan, runs: Sequence[ArmRun]) -> tuple[PlannedRun, ...]:
    """What is left of the current round, in order; empty when the trial is done.

    Args:
        plan: The plan.
        runs: Made so far, in order. Interrupted ones are made again; an arm that failed is not.
    """
    walk = _walk(plan, _finished(runs))
    if walk.round is None:
        return ()
    first = 0
    repeats: dict[str, int] = {}
    for run in runs:
        first = max(first, run.position + 1)
        repeats[run.arm] = max(repeats.get(run.arm, 0), run.repeat + 1)
    return tuple(
        PlannedRun(
            arm=arm,
            treatments=treatments_of(arm),
            repeat=repeats.get(arm, 0),
            stage=walk.round.stage,
            position=first + i,
        )
        for i, arm in enumerate(walk.round.left)
    )


def runs_left(plan: Plan, runs: Sequence[ArmRun]) -> int:
    """Runs that the trial will make, about: verdicts that are clear early make them fewer, ``extra`` repeats more."""
    walk = _walk(plan, _finished(runs))
    if walk.round is None:
        return 0
    current = walk.round
    rounds_ahead = max(0, plan.repeats - current.number - 1) if plan.candidates else 0
    return len(current.left) + rounds_ahead * len(current.members) + walk.rungs_ahead * 3 * plan.repeats


def ladder(plan: Plan, runs: Sequence[ArmRun]) -> tuple[Rung, ...]:
    """What the treatments add to one another, the baseline first; rungs left out are among them with their reason.

    While the trial runs: as far as it has come.
    """
    return tuple(_walk(plan, _finished(runs)).rungs)


def best(rungs: Sequence[Rung]) -> str:
    """Id of the arm that the ladder ends with."""
    return next((rung.arm for rung in reversed(rungs) if rung.is_kept), BASELINE)


class _Round(NamedTuple):
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


class _Walk(NamedTuple):
    """How far a trial has come: its rungs so far, the open round (None at the end), rungs that may follow it."""

    rungs: list[Rung]
    round: _Round | None
    rungs_ahead: int


def _finished(runs: Sequence[ArmRun]) -> list[ArmRun]:
    return [run for run in runs if run.status != "interrupted"]


def _walk(plan: Plan, done: list[ArmRun]) -> _Walk:
    """Goes the trial's way from its start as far as the runs reach.

    Every decision rests on runs of complete rounds of its own stage only, so that later runs cannot change it.
    """
    rungs: list[Rung] = []
    pair = [run for run in done if run.arm in (BASELINE, AGAIN)]
    if pair and all(run.status == "failed" for run in pair):
        return _Walk(rungs, None, 0)
    if plan.candidates is None or (plan.finds_batch and not plan.candidates and len(pair) < 2):
        return _Walk(rungs, _open_round(done, 0, [], [BASELINE, AGAIN], Plan(repeats=1, extra=0), _compared_alone), 0)
    arms = list(dict.fromkeys(candidate.treatment for candidate in plan.candidates))
    open_round = _open_round(done, 0, [BASELINE, AGAIN], arms, plan, _compared_alone)
    if open_round is not None:
        allowed = sum(candidate.safety in plan.allow for candidate in plan.candidates)
        return _Walk(rungs, open_round, max(0, allowed - 1) if plan.has_ladder else 0)
    return _climb(plan, done)


def _climb(plan: Plan, done: list[ArmRun]) -> _Walk:
    judgement = judge(done, *_told(plan))
    alone = judge([run for run in done if run.stage == 0], *_told(plan))
    climb = _Climb(plan, done, judgement, alone)
    queue = climb.queue()
    for i, candidate in enumerate(queue):
        reason = climb.reason_to_skip(candidate)
        if reason:
            climb.leave_out(candidate, reason)
        elif not climb.kept:
            climb.keep_first(candidate)
        else:
            open_round = climb.measure(candidate)
            if open_round is not None:
                return _Walk(climb.rungs, open_round, len(queue) - i - 1)
    return _Walk(climb.rungs, climb.fastest_batch(), 0)


class _Climb:
    """The ladder as it is built, rung by rung."""

    def __init__(self, plan: Plan, done: list[ArmRun], judgement: Judgement, alone: Judgement) -> None:
        self._plan = plan
        self._done = done
        self._judgement = judgement
        self._alone = {arm.id: arm for arm in alone.arms}
        self._stage = 0
        self._reached = 1.0
        self.kept: list[Candidate] = []
        self.rungs: list[Rung] = []
        baseline = self._alone.get(BASELINE)
        if baseline is not None:
            self.rungs.append(
                Rung(added="", arm=BASELINE, is_kept=True, verdict=baseline.verdict, peak_bytes=baseline.peak_bytes)
            )

    def queue(self) -> list[Candidate]:
        """Those that gained, the strongest first; then those that may yet gain; then those that stay out."""
        candidates = [c for c in self._plan.candidates or () if c.treatment in self._alone]

        def rank(candidate: Candidate) -> tuple[int, float]:
            arm = self._alone[candidate.treatment]
            if self._unfit(candidate):
                return 2, 0.0
            if arm.verdict == "improved" and arm.speedup is not None:
                return 0, -arm.speedup.value
            return 1, -candidate.predicted.high if candidate.predicted is not None else 0.0

        return sorted(candidates, key=rank)

    def reason_to_skip(self, candidate: Candidate) -> str:
        """Why a treatment is not put on top of those kept; empty where it is."""
        unfit = self._unfit(candidate)
        if unfit:
            return unfit
        for other in self.kept:
            if _conflict(candidate, other):
                return f"cannot be combined with {other.treatment}"
        has_gained = self._alone[candidate.treatment].verdict == "improved"
        if not has_gained and self._reached < MOVED:
            return self._alone[candidate.treatment].reason or "no gain alone"
        return "measured alone only" if self.kept and not self._plan.has_ladder else ""

    def leave_out(self, candidate: Candidate, reason: str) -> None:
        """A rung that was measured alone and goes no further."""
        arm = self._alone[candidate.treatment]
        self.rungs.append(self._rung(candidate, arm.id, arm.verdict, False, None, reason))

    def keep_first(self, candidate: Candidate) -> None:
        """The strongest treatment: measured alone, it is measured on top of the baseline."""
        arm = self._alone[candidate.treatment]
        self.kept.append(candidate)
        self._reached = arm.speedup.value if arm.speedup is not None else 1.0
        told = self._judgement.arm(arm.id) or arm  # by all its runs, those of later stages too
        self.rungs.append(self._rung(candidate, arm.id, arm.verdict, True, told.speedup, ""))

    def measure(self, candidate: Candidate) -> _Round | None:
        """A rung on top of those kept; answers with the round that is open, None when the rung is decided."""
        self._stage += 1
        below = arm_id([c.treatment for c in self.kept])
        id_ = arm_id([*(c.treatment for c in self.kept), candidate.treatment])
        band = self._judgement.noise_band

        def compared(first: Sequence[ArmRun], arm: str) -> tuple[Comparison, float]:
            return compare_arms(first, [below], arm, band), band

        references = list(dict.fromkeys([BASELINE, below]))
        open_round = _open_round(self._done, self._stage, references, [id_], self._plan, compared)
        if open_round is not None:
            return open_round
        own = [run for run in self._done if run.stage == self._stage]
        self._decide(candidate, id_, below, own, band)
        return None

    def fastest_batch(self) -> _Round | None:
        """Looks for the fastest batch, one run a size, then measures it as a rung; None when that is done."""
        names = {candidate.treatment.partition("=")[0] for candidate in self.kept}
        if not self._plan.finds_batch or TREATMENT in names:
            return None
        below = arm_id([candidate.treatment for candidate in self.kept])
        # Runs of the search, and those of the rung below from before it: later ones must not move the knee.
        began = min((run.position for run in self._done if run.stage == SEARCH), default=len(self._done))
        points = points_of([run for run in self._done if run.stage == SEARCH or run.position < began], below)
        size = next_size(points, self._plan.capacity_bytes)
        if size is not None:
            arm = resized(below, size)
            return _Round(SEARCH, 0, [arm], [arm])
        choice = knee(points)
        if choice is None or choice.batch_size == 1:
            return None
        candidate = Candidate(treatment=f"{TREATMENT}=x{choice.batch_size}", safety="semantics")
        return self.measure(candidate)

    def _decide(self, candidate: Candidate, id_: str, below: str, own: list[ArmRun], band: float) -> None:
        arm = self._judgement.arm(id_)
        step = compare_arms(own, [below], id_, band)
        if arm is None or arm.verdict == "failed":
            reason = arm.reason if arm is not None else "it never ran"
            self.rungs.append(self._rung(candidate, id_, "failed", False, None, reason))
            return
        reason = "" if step.call == "improved" else _why_not(step)
        if arm.loss == "diverged":
            reason = "its losses leave the baseline's"
        if not reason:
            self.kept.append(candidate)
            total = compare_arms(own, [BASELINE], id_, band).speedup
            self._reached = total.value if total is not None else self._reached
        self.rungs.append(self._rung(candidate, id_, step.call, not reason, step.speedup, reason))

    def _unfit(self, candidate: Candidate) -> str:
        arm = self._alone[candidate.treatment]
        if arm.verdict == "failed":
            return arm.reason
        if arm.verdict == "regressed":
            return "slower alone"
        if candidate.safety not in self._plan.allow:
            return "changes the training itself, so it was measured alone only"
        return "its losses leave the baseline's" if arm.loss == "diverged" else ""

    def _rung(
        self, candidate: Candidate, id_: str, verdict: ArmVerdict, is_kept: bool, gain: Interval | None, reason: str
    ) -> Rung:
        arm = self._judgement.arm(id_)
        return Rung(
            added=candidate.treatment,
            arm=id_,
            is_kept=is_kept,
            verdict=verdict,
            step_gain=gain,
            speedup=arm.speedup if arm is not None else None,
            predicted=candidate.predicted,
            peak_bytes=arm.peak_bytes if arm is not None else None,
            loss=arm.loss if arm is not None else "unknown",
            reason=reason,
        )


def _open_round(
    done: list[ArmRun],
    stage: int,
    references: list[str],
    arms: list[str],
    plan: Plan,
    compared: Callable[[Sequence[ArmRun], str], tuple[Comparison, float]],
) -> _Round | None:
    """The first round of a stage that is not complete; None when all arms are settled or ran often enough.

    Args:
        done: Finished runs.
        stage: Which.
        references: Arms of every round.
        arms: Arms in question.
        plan: Tells how many rounds.
        compared: What the stage's runs so far say of an arm, and the noise band.
    """
    rounds = rounds_of(done)
    ran = {(run.arm, *at) for run, at in zip(done, rounds, strict=True)}
    active = list(arms)
    for number in range(plan.repeats + plan.extra):
        members = [*references, *active][:: 1 if number % 2 == 0 else -1]
        left = [arm for arm in members if (arm, stage, number) not in ran]
        if active and left:
            return _Round(stage, number, members, left)
        first = [run for run, (s, r) in zip(done, rounds, strict=True) if s == stage and r <= number]
        active = [a for a in active if not failure_of(a, first) and _is_open(*compared(first, a), number + 1, plan)]
    return None


def _is_open(comparison: Comparison, band: float, n_rounds: int, plan: Plan) -> bool:
    """Whether an arm runs once more after so many rounds."""
    if n_rounds < min(MIN_ROUNDS, plan.repeats):
        return True
    if comparison.call in ("improved", "regressed"):
        return False
    if n_rounds < plan.repeats:
        return comparison.call == "inconclusive" or band > NARROW_BAND
    if plan.repeats < MIN_ROUNDS:
        return False
    needed = comparison.repeats_needed
    return comparison.call == "inconclusive" and needed is not None and needed <= plan.repeats + plan.extra - n_rounds


def _compared_alone(first: Sequence[ArmRun], arm: str) -> tuple[Comparison, float]:
    band, _ = measured_pair(first)
    return compare_arms(first, [BASELINE, AGAIN], arm, band), band


def _told(plan: Plan) -> tuple[dict[str, Gain], dict[str, Safety]]:
    candidates = plan.candidates or ()
    predicted = {c.treatment: c.predicted for c in candidates if c.predicted is not None}
    return predicted, {c.treatment: c.safety for c in candidates}


def _conflict(a: Candidate, b: Candidate) -> bool:
    name_a, name_b = a.treatment.partition("=")[0], b.treatment.partition("=")[0]
    return name_a == name_b or name_a in b.conflicts or name_b in a.conflicts


def _why_not(step: Comparison) -> str:
    if step.call == "inconclusive":
        return f"no gain shown on top of the rungs kept: {step.reason}" if step.reason else "no gain shown on top"
    return "slower on top of the rungs kept" if step.call == "regressed" else "no gain on top of the rungs kept"
