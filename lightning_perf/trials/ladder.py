"""The strategy of a trial: derive the next runs and the ladder from the plan and the runs made so far.

All functions are pure, so a trial can be stopped and continued from the records on disk.

Stage 0 measures each treatment alone, between the two halves of an A/A pair. Then treatments that gained are combined,
the strongest first, one stage per rung, each compared with the baseline and the rung below. Treatments without a
speedup alone are tried last, if the kept rungs may have moved the bottleneck. Rounds are mirrored (A B C, C B A, …), so
that drift of the machine affects all arms of a stage alike.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from lightning_perf.records import ArmRun, Gain, Rung, Safety

from .judge import AGAIN, BASELINE, judge, treatments_of
from .ladder_search import LadderSearch
from .rounds import Plan, PlannedRun, Round, open_round


def next_runs(plan: Plan, runs: Sequence[ArmRun]) -> tuple[PlannedRun, ...]:
    """Return the remaining runs of the current round, in order; empty if the trial is done.

    ``runs`` are those made so far, in order. Failed ones are not repeated.
    """
    progress = _progress(plan, runs)
    if progress.round is None:
        return ()
    repeats = Counter(run.arm for run in runs)
    return tuple(
        PlannedRun(
            arm=arm,
            treatments=treatments_of(arm),
            repeat=repeats[arm],
            stage=progress.round.stage,
            position=position,
        )
        for position, arm in enumerate(progress.round.left, start=len(runs))
    )


def runs_left(plan: Plan, runs: Sequence[ArmRun]) -> int:
    """Return about how many runs remain: clear verdicts make them fewer, ``extra`` repeats more."""
    progress = _progress(plan, runs)
    if progress.round is None:
        return 0
    current = progress.round
    rounds_ahead = max(0, plan.repeats - current.number - 1) if plan.candidates else 0
    return len(current.left) + rounds_ahead * len(current.members) + progress.rungs_ahead * 3 * plan.repeats


def ladder(plan: Plan, runs: Sequence[ArmRun]) -> tuple[Rung, ...]:
    """Return the ladder so far, the baseline first; rungs that were left out have a reason."""
    return tuple(_progress(plan, runs).rungs)


def best(rungs: Sequence[Rung]) -> str:
    """Return the id of the arm that the ladder ends with."""
    return next((rung.arm for rung in reversed(rungs) if rung.is_kept), BASELINE)


class _Progress(NamedTuple):
    """Rungs of a trial so far, the open round (None at the end), and the number of rungs that may follow."""

    rungs: list[Rung]
    round: Round | None
    rungs_ahead: int


def _progress(plan: Plan, runs: Sequence[ArmRun]) -> _Progress:
    """Repeat the decisions of the trial from its start, as far as the runs reach.

    Each decision depends on complete rounds of its own stage. Later runs change it only if they show that an arm fails
    or that its losses diverge.
    """
    rungs: list[Rung] = []
    pair = [run for run in runs if run.arm in (BASELINE, AGAIN)]
    if pair and all(run.status == "failed" for run in pair):
        return _Progress(rungs, None, 0)
    both = [BASELINE, AGAIN]
    if plan.finds_batch and not plan.candidates and len(pair) < 2:
        return _Progress(rungs, open_round(runs, 0, [], both, Plan(repeats=1, extra=0), both), 0)
    arms = list(dict.fromkeys(candidate.treatment for candidate in plan.candidates))
    found = open_round(runs, 0, both, arms, plan, both)
    if found is not None:
        if any(run.arm in arms for run in runs):
            # The rungs of an interrupted trial: as if it ended here.
            rungs = _search(msgspec.structs.replace(plan, has_ladder=False, finds_batch=False), runs).rungs
        allowed = sum(one.safety in plan.allow and not one.is_measurement for one in plan.candidates)
        return _Progress(rungs, found, max(0, allowed - 1) if plan.has_ladder else 0)
    return _search(plan, runs)


def _search(plan: Plan, done: Sequence[ArmRun]) -> _Progress:
    judgement = judge(done, *expectations(plan))
    alone = judge([run for run in done if run.stage == 0], *expectations(plan))
    search = LadderSearch(plan, done, judgement, alone)
    queue = search.queue()
    for i, candidate in enumerate(queue):
        reason = search.reason_to_skip(candidate)
        if reason:
            search.leave_out(candidate, reason)
        elif not search.kept:
            search.keep_first(candidate)
        else:
            found = search.measure(candidate)
            if found is not None:
                return _Progress(search.rungs, found, len(queue) - i - 1)
    return _Progress(search.rungs, search.fastest_batch(), 0)


def expectations(plan: Plan) -> tuple[dict[str, Gain], dict[str, Safety]]:
    """Return the predicted gains and the safeties of the candidates, by treatment."""
    predicted = {c.treatment: c.predicted for c in plan.candidates if c.predicted is not None}
    return predicted, {c.treatment: c.safety for c in plan.candidates}
