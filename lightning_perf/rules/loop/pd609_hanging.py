"""PD609: nothing in the training moved for a long time."""

from __future__ import annotations

from collections.abc import Iterator

from lightning_perf.records import Finding, Hang, Prescription, RankState, Session, Severity
from lightning_perf.rules.parts import fact, fix, unsigned_finding
from lightning_perf.rules.rule import Skip, rule
from lightning_perf.rules.severity import severity_of
from lightning_perf.rules.thresholds import HANG_BUSY_MIN, HANG_MIN_STEPS
from lightning_perf.rules.wording import duration, number_of, percent


@rule("PD609", "hanging")
def check(session: Session) -> Finding | None:
    """Report the last hang that did not end, otherwise the longest."""
    if "hangs" in session.missing:
        raise Skip(session.missing["hangs"])
    step_s = session.steady.step_s.p50 if session.steady is not None else 0.0
    hangs = [one for one in session.hangs if one.lasted_s is None or one.lasted_s >= HANG_MIN_STEPS * step_s]
    if not hangs:
        return None
    worst = max(hangs, key=lambda one: (one.lasted_s is None, one.lasted_s or one.quiet_s))
    lasted_s = worst.lasted_s or worst.quiet_s
    where = f" at {worst.where}" if worst.where else ""
    call = f", in {worst.call}" if worst.call and worst.where else ""
    end = "" if worst.lasted_s is not None else " It did not move again."
    return unsigned_finding(
        severity=_severity(worst, session.run.wall_s),
        summary=(
            f"Nothing moved for {duration(lasted_s)} in {worst.phase.replace('_', ' ')} after "
            f"{number_of(worst.n_steps, 'step')}{where}{call}.{end}"
        ),
        evidence=(
            fact("nothing moved for", lasted_s, "s", worst.limit_s),
            fact("hangs", len(hangs), "count"),
            *(
                []
                if worst.cpu_fraction is None
                else [fact("training thread, of a core", worst.cpu_fraction, "fraction")]
            ),
            *(fact(f"process {one.pid}", f"{one.state} {one.where}".strip()) for one in worst.workers if one.where),
            *(fact(f"rank {one.rank}", _rank_text(one)) for one in _different(worst.ranks)),
            *([fact("stacks of all threads", worst.file)] if worst.file else []),
        ),
        prescriptions=tuple(_fixes(worst)),
        confidence="high" if worst.lasted_s is None else "medium",
    )


def _severity(hang: Hang, wall_s: float) -> Severity:
    """Rate one that did not end as high, another by its share of the run."""
    if hang.lasted_s is None:
        return "high"
    return severity_of(hang.lasted_s / wall_s) if wall_s > 0 else "info"


def _rank_text(rank: RankState) -> str:
    text = f"{rank.phase.replace('_', ' ')} after {number_of(rank.n_steps, 'step')}"
    return f"{text} at {rank.where}" if rank.where else text


def _different(ranks: tuple[RankState, ...]) -> Iterator[RankState]:
    """Yield one rank of each place, if ranks are at different ones."""
    places = {(one.n_steps, one.phase, one.where): one for one in reversed(ranks)}
    if len(places) > 1:
        yield from sorted(places.values(), key=lambda one: one.rank)


def _fixes(hang: Hang) -> Iterator[Prescription]:
    if len(list(_different(hang.ranks))) > 1:
        yield fix("let all ranks make the same collective calls, also in branches and with uneven data", "hours")
    elif hang.phase == "data_wait" and hang.workers:
        yield fix("open locks, files and connections in the worker, not before it is forked", "hours")
    elif hang.cpu_fraction is not None and hang.cpu_fraction > HANG_BUSY_MIN:
        yield fix(f"find out what it computes ({percent(hang.cpu_fraction)} of a core), e.g. an endless loop", "hours")
    else:
        yield fix("give this call a timeout, or run it in the background", "minutes")
