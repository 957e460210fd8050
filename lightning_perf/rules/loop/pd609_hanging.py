"""PD609: training made no progress for a long time."""

from lightning_perf.records import Finding, Hang, Prescription, RankState, Session
from lightning_perf.rules.findings import fact, fix, make_finding, optional_fact, severity_of
from lightning_perf.rules.rule import Skip, rule
from lightning_perf.rules.signals import steps_text
from lightning_perf.rules.thresholds import HANG_BUSY_MIN, HANG_MIN_STEPS
from lightning_perf.rules.wording import duration, number_of


@rule("PD609", "hanging")
def check(session: Session) -> Finding | None:
    """Report the last hang that did not end, otherwise the longest; rate the latter by its share of the run."""
    if "hangs" in session.missing:
        raise Skip(session.missing["hangs"])
    step_s = session.steady.step_s.p50 if session.steady is not None else 0.0
    hangs = [one for one in session.hangs if one.lasted_s is None or one.lasted_s >= HANG_MIN_STEPS * step_s]
    if not hangs:
        return None
    worst = max(hangs, key=lambda one: (one.lasted_s is None, one.lasted_s or one.quiet_s))
    is_over, lasted_s, wall_s = worst.lasted_s is not None, worst.lasted_s or worst.quiet_s, session.run.wall_s
    where = f" at {worst.where}{f', in {worst.call}' if worst.call else ''}" if worst.where else ""
    elsewhere = _different(worst.ranks)
    return make_finding(
        severity="high" if not is_over else severity_of(lasted_s / wall_s) if wall_s > 0 else "info",
        summary=(
            f"No progress for {duration(lasted_s)} in {worst.phase.replace('_', ' ')} after "
            f"{steps_text(session, worst.n_steps)}{where}.{'' if is_over else ' It did not continue.'}"
        ),
        evidence=(
            fact("time without progress", lasted_s, "s", worst.limit_s),
            fact("hangs", len(hangs), "count"),
            optional_fact("CPU use of the training thread, share of one core", worst.cpu_fraction, "fraction"),
            *(fact(f"process {one.pid}", f"{one.state} {one.where}".strip()) for one in worst.workers if one.where),
            *(fact(f"rank {one.rank}", _rank_text(one)) for one in elsewhere),
            optional_fact("stacks of all threads", worst.file or None),
        ),
        prescriptions=_fix(worst, bool(elsewhere)),
        confidence="medium" if is_over else "high",
    )


def _different(ranks: tuple[RankState, ...]) -> list[RankState]:
    """Return one rank per place at which ranks hang; empty if all hang at the same place."""
    places = {(one.n_steps, one.phase, one.where): one for one in reversed(ranks)}
    return sorted(places.values(), key=lambda one: one.rank) if len(places) > 1 else []


def _rank_text(rank: RankState) -> str:
    text = f"{rank.phase.replace('_', ' ')} after {number_of(rank.n_steps, 'step')}"
    return f"{text} at {rank.where}" if rank.where else text


def _fix(hang: Hang, is_elsewhere: bool) -> Prescription:
    if is_elsewhere:
        return fix("let all ranks make the same collective calls, also in branches and with uneven data", "hours")
    if hang.phase == "data_wait" and hang.workers:
        return fix("open locks, files and connections in the worker, not before it is forked", "hours")
    if hang.cpu_fraction is not None and hang.cpu_fraction > HANG_BUSY_MIN:
        return fix("find out what this line computes, e.g. an endless loop", "hours")
    return fix("give this call a timeout, or run it in the background", "minutes")
