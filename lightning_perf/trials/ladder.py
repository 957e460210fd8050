"""The strategy of a trial: given what was planned and what has run, what to run next and what it comes to.

Pure: the runner asks ``next_runs`` until it answers with nothing, and may stop and ask again from the records on disk.

Stage 0 measures each treatment alone, between the two halves of an A/A pair. Then the treatments that gained are put
on top of one another, the strongest first, one stage a rung, each beside the baseline and the rung below; last, where
the rungs kept have moved the bottleneck, those that gained nothing alone. Rounds are mirrored (A B C, C B A, …), so
that a machine that drifts drifts alike for all arms of a stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from lightning_perf.records import ArmRun, Gain, Rung, Safety

from .climb import Climb
from .judge import AGAIN, BASELINE, judge, treatments_of
from .planned import Candidate, Plan, PlannedRun, arm_id
from .rounds import Round, compared_alone, open_round

__all__ = [
    "AGAIN", "BASELINE", "Candidate", "Plan", "PlannedRun", "arm_id", "best", "ladder", "next_runs", "runs_left",
]  # fmt: skip


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


class _Walk(NamedTuple):
    """How far a trial has come: its rungs so far, the open round (None at the end), rungs that may follow it."""

    rungs: list[Rung]
    round: Round | None
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
        return _Walk(rungs, open_round(done, 0, [], [BASELINE, AGAIN], Plan(repeats=1, extra=0), compared_alone), 0)
    arms = list(dict.fromkeys(candidate.treatment for candidate in plan.candidates))
    found = open_round(done, 0, [BASELINE, AGAIN], arms, plan, compared_alone)
    if found is not None:
        if any(run.arm in arms for run in done):
            # As if it ended here: what an interrupted trial comes to.
            rungs = _climb(msgspec.structs.replace(plan, has_ladder=False, finds_batch=False), done).rungs
        allowed = sum(candidate.safety in plan.allow for candidate in plan.candidates)
        return _Walk(rungs, found, max(0, allowed - 1) if plan.has_ladder else 0)
    return _climb(plan, done)


def _climb(plan: Plan, done: list[ArmRun]) -> _Walk:
    judgement = judge(done, *_told(plan))
    alone = judge([run for run in done if run.stage == 0], *_told(plan))
    climb = Climb(plan, done, judgement, alone)
    queue = climb.queue()
    for i, candidate in enumerate(queue):
        reason = climb.reason_to_skip(candidate)
        if reason:
            climb.leave_out(candidate, reason)
        elif not climb.kept:
            climb.keep_first(candidate)
        else:
            found = climb.measure(candidate)
            if found is not None:
                return _Walk(climb.rungs, found, len(queue) - i - 1)
    return _Walk(climb.rungs, climb.fastest_batch(), 0)


def _told(plan: Plan) -> tuple[dict[str, Gain], dict[str, Safety]]:
    candidates = plan.candidates or ()
    predicted = {c.treatment: c.predicted for c in candidates if c.predicted is not None}
    return predicted, {c.treatment: c.safety for c in candidates}
