"""PD701: one rank works longer per step than the others, which wait for it."""

from lightning_perf.records import PARTS, STEP_PHASES, Finding, Prescription, Ranks, RankSummary, Session, StageTimes
from lightning_perf.rules.findings import fact, fix, timed_finding
from lightning_perf.rules.rank_signals import distinct_findings, median_of_others, ranks_of, ranks_text, traced_ranks_of
from lightning_perf.rules.rule import Skip, rule
from lightning_perf.rules.signals import claims_within, is_cpu_run, phase_s, steady_of
from lightning_perf.rules.thresholds import (
    STRAGGLER_MIN_CORE_EXCESS,
    STRAGGLER_MIN_EXCESS,
    STRAGGLER_MIN_RARE_SHARE,
    STRAGGLER_MIN_STEP_SHARE,
    STRAGGLER_USUAL_PART,
)
from lightning_perf.rules.wording import duration, percent

_PHASES = {
    "data": ("data_wait", "transfer"),
    "compute": ("backward", "forward", "optimizer"),
    "host": ("scheduler", "callbacks", "logging", "other"),
}
_CAUSES = {
    "data": "data wait and transfer",
    "compute": "compute",
    "host": "time in callbacks, logging and the training loop",
}


@rule("PD701", "straggling-rank", explains=("PD702",))
def check(session: Session) -> Finding | None:
    traced = traced_ranks_of(session)
    if traced is not None:
        ranks, reading = traced
        return _compare(session, ranks, reading.span, is_traced=True)
    return _compare(session, ranks_of(session), steady_of(session), is_traced=False)


def _compare(session: Session, ranks: Ranks, steady: StageTimes, is_traced: bool) -> Finding | None:
    worst = max(ranks.summaries, key=lambda one: one.own_s)
    usual_s = median_of_others(ranks, lambda one: one.own_s, worst)
    excess_s = worst.own_s - usual_s
    step_s = steady.step_s.mean
    if usual_s <= 0 or step_s <= 0:
        raise Skip("the ranks' own work was not measured")
    usual_excess_s = worst.own_p50_s - median_of_others(ranks, lambda one: one.own_p50_s, worst)
    is_usual = usual_excess_s >= STRAGGLER_USUAL_PART * excess_s
    least_share = STRAGGLER_MIN_STEP_SHARE if is_usual else STRAGGLER_MIN_RARE_SHARE
    part = max(PARTS, key=lambda name: _excess_s(ranks, worst, name))
    is_core = part == "compute" and not is_traced and is_cpu_run(session)
    least_excess = STRAGGLER_MIN_CORE_EXCESS if is_core else STRAGGLER_MIN_EXCESS
    if excess_s < least_excess * usual_s or excess_s < least_share * step_s:
        return None
    cause = "host time without compute" if is_traced and part == "host" else _CAUSES[part]
    lost_s = min(excess_s, step_s) * steady.n_span_steps
    others = [one.rank for one in ranks.summaries if one is not worst and one.own_s >= (1 + least_excess) * usual_s]
    measured_s = _measured_s(ranks, worst)
    # Loading and compute do not disappear: they are distributed over all ranks.
    least_part = 1.0 if part == "host" else 1 - 1 / len(ranks.summaries)
    if is_cpu_run(session) and len({one.node for one in ranks.summaries}) < len(ranks.summaries):
        least_part = 0.0  # ranks that compute instead of waiting slow down others that share their caches and memory
    alone = distinct_findings(ranks, worst.rank)
    line = next(filter(None, (worst.found_lines.get(text) for text in alone)), None)
    only = f" Only rank {worst.rank} spends much time in {line}." if line else ""
    waiting = [one for one in ranks.summaries if one is not worst and one.waiting_s is not None]
    where = f" on {worst.node}" if len({one.node for one in ranks.summaries}) > 1 else ""
    return timed_finding(
        steady,
        summary=(
            f"Rank {worst.rank}{where} slows down {'all others' if len(ranks.summaries) > 2 else 'the other rank'}: "
            f"it works {duration(worst.own_s)} per step{'' if is_usual else ' on average'}, "
            f"{'the others' if len(ranks.summaries) > 2 else 'the other'} {duration(usual_s)}. "
            f"The difference is mostly {cause}{_name_of(worst, part)}.{only}{_slow_too(others)}"
        ),
        evidence=(
            fact(
                f"work of rank {worst.rank} ÷ median of the others",
                worst.own_s / usual_s,
                "ratio",
                1 + least_excess,
                worst.n_steps,
            ),
            fact(f"excess per step: {cause}", _excess_s(ranks, worst, part), "s", n=worst.n_steps),
            *(
                fact(f"wait of rank {one.rank} for other ranks, per step", one.waiting_s or 0.0, "s", n=one.waiting_n)
                for one in sorted(waiting, key=lambda one: -(one.waiting_s or 0.0))[:1]
            ),
            *(
                fact(
                    f"found on rank {worst.rank} but not on most others",
                    f"{text}: {worst.found_lines[text]}" if text in worst.found_lines else text,
                )
                for text in alone
                if not text.startswith("PD701")
            ),
        ),
        prescriptions=_prescription(worst, part, is_traced),
        claims=_claims(session, steady, worst, part, lost_s, is_traced),
        low_s=0.0 if measured_s is None else least_part * min(lost_s, measured_s * steady.n_span_steps),
        method="modeled" if measured_s is None else "timed",
        basis=(
            f"the excess of rank {worst.rank} ({percent(excess_s / step_s)} of step time)"
            + ("" if measured_s is None else ", and the longer waits of other ranks")
            + ("; the second-slowest rank then limits the step" if others else "")
        ),
    )


def _measured_s(ranks: Ranks, worst: RankSummary) -> float | None:
    """Return the seconds per step that the slowest rank exceeds the second-slowest; None if waits were not measured.

    This is the smaller of two measurements: by their work, and by how long ranks wait.
    """
    others = [one for one in ranks.summaries if one is not worst]
    waits = [one.waiting_s for one in others if one.waiting_s is not None]
    if worst.waiting_s is None or len(waits) < len(others):
        return None
    return max(0.0, min(worst.own_s - max(one.own_s for one in others), min(waits) - worst.waiting_s))


def _excess_s(ranks: Ranks, worst: RankSummary, part: str) -> float:
    return worst.parts_s.get(part, 0.0) - median_of_others(ranks, lambda one: one.parts_s.get(part, 0.0), worst)


def _claims(
    session: Session, steady: StageTimes, worst: RankSummary, part: str, lost_s: float, is_traced: bool
) -> dict[str, float]:
    """Return the lost time by phase of this session's rank: its slow part, or backward if another rank is slow.

    In a trace it is distributed over all phases: in which of them ranks wait depends on the strategy.
    """
    if is_traced:
        return claims_within(steady, lost_s, [name for name in steady.phases if name in STEP_PHASES])
    if worst.rank != session.run.rank:
        return {"backward": lost_s}
    claims: dict[str, float] = {}
    for phase in _PHASES[part]:
        claims[phase] = min(phase_s(steady, phase), lost_s - sum(claims.values()))
    return claims


def _name_of(worst: RankSummary, part: str) -> str:
    if part == "host" and worst.slowest_name is not None:
        return f" ({worst.slowest_name} takes {duration(worst.slowest_s)} per step)"
    return ""


def _slow_too(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f" Rank {ranks[0]} is slow too."
    return f" Ranks {ranks_text(ranks)} are slow too." if ranks else ""


def _prescription(worst: RankSummary, part: str, is_traced: bool) -> Prescription:
    summaries = {
        "data": f"check rank {worst.rank}'s disk and cores: its loader is slower, or its samples cost more",
        "compute": f"give rank {worst.rank} batches of the same size; check what else uses its device or cores",
        "host": f"run {worst.slowest_name or 'callbacks'} less often, or on all ranks in turn",
    }
    if is_traced:
        summaries["host"] = f"find the host work that only rank {worst.rank} does, and run it less often"
    return fix(summaries[part], "minutes")
