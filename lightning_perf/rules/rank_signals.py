"""Measurements of ranks that rules use; functions raise Skip with the reason if one is missing."""

from collections.abc import Callable
from statistics import median

from lightning_perf.records import PARTS, Ranks, RankSummary, Session, TraceRanks, combine_ranks, ranks_by_finding

from .rule import Skip
from .signals import check_has_ranks, own_summary, summaries_of
from .thresholds import COLLECTIVE_SMALL_S, COLLECTIVES_MIN_SMALL, RANKS_SHOWN
from .trace_reading import Reading, reading_of


def ranks_of(session: Session) -> Ranks:
    """Return the ranks of the run; raise Skip if it has one, or fewer than two reported their measurements."""
    check_has_ranks(session)
    ranks = session.ranks
    if ranks is None or len(ranks.summaries) < 2:
        raise Skip(session.missing.get("ranks", "fewer than two ranks reported their measurements"))
    return ranks


def traced_ranks_of(session: Session) -> tuple[Ranks, Reading] | None:
    """Return the ranks from their traces, and the reading; None unless traces of several ranks were analyzed.

    Traces are analyzed without a session, so they contain no other measurements of the ranks.
    """
    if session.ranks is not None or not session.windows:
        return None
    reading = reading_of(session)
    found = _from_traces(reading.trace.ranks) if reading.trace.ranks is not None else None
    return (found, reading) if found is not None and len(found.summaries) > 1 else None


def _from_traces(ranks: TraceRanks) -> Ranks | None:
    summaries = tuple(
        RankSummary(
            rank=one.rank,
            node="",
            n_steps=ranks.n_steps,
            step_s=one.step_s,
            own_s=one.own_s,
            own_p50_s=one.own_s,
            waiting_s=one.waiting_s,
            waiting_n=ranks.n_steps,
            parts_s={part: one.parts_s.get(part, 0.0) for part in PARTS},
        )
        for one in ranks.ranks
    )
    return combine_ranks(summaries, ranks.world_size or len(summaries))


def waited_s(session: Session, reading: Reading) -> float:
    """Return the seconds of exposed communication spent waiting for slower ranks; 0 if not known.

    Without traces of other ranks, this is the wait per step above that of the rank that waits least, which is assumed
    to wait for the network only.
    """
    communication = reading.trace.communication
    if communication is None:
        return 0.0
    if communication.waiting_s is not None:
        return communication.waiting_s
    own = own_summary(session)
    waits = [one.waiting_s for one in summaries_of(session) if one.waiting_s is not None]
    if own is None or own.waiting_s is None or len(waits) < 2 or own.step_s <= 0:
        return 0.0
    share = (own.waiting_s - min(waits)) / own.step_s
    return min(communication.exposed_s, share * reading.trace.span_s)


def exposed_s_of(session: Session, reading: Reading) -> float:
    """Return a trace's seconds of exposed communication, without small collectives and waiting for slower ranks."""
    communication = reading.trace.communication
    if communication is None:
        return 0.0
    exposed_s = reading.path_s("communication")
    if communication.waiting_s is None and communication.least_exposed_s is not None:
        exposed_s = min(exposed_s, communication.least_exposed_s * len(reading.trace.steps))
    # PD708 reports small collectives.
    return (exposed_s - waited_s(session, reading)) * (1 - small_part(reading))


def small_part(reading: Reading) -> float:
    """Return the fraction of a trace's collectives below 1 MiB; 0 if they are few or the trace has no steps."""
    communication = reading.trace.communication
    if communication is None or not reading.trace.steps or communication.n_per_step <= 0:
        return 0.0
    small = communication.small_per_step
    if small is None:  # sizes were not recorded
        is_small = communication.median_s is not None and communication.median_s < COLLECTIVE_SMALL_S
        small = communication.n_per_step if is_small else 0.0
    return min(1.0, small / communication.n_per_step) if small > COLLECTIVES_MIN_SMALL else 0.0


def median_of_others(ranks: Ranks, value: Callable[[RankSummary], float], excluded: RankSummary) -> float:
    """Return the median of a value over all ranks but one."""
    return median(value(one) for one in ranks.summaries if one is not excluded)


def ranks_with_finding(session: Session, text: str) -> str:
    """Return the ranks with a finding, as ``"0, 3 and 5 more of 16"``; empty if all have it or others are unknown.

    ``text`` is the code and name of the finding.
    """
    summaries = summaries_of(session)
    found = set(ranks_by_finding(summaries).get(text, ()))
    if not any(one.found for one in summaries if one.rank != session.run.rank):
        return ""
    found.add(session.run.rank)
    return f"{ranks_text(sorted(found))} of {len(summaries)}" if len(found) < len(summaries) else ""


def distinct_findings(ranks: Ranks, rank: int) -> tuple[str, ...]:
    """Return the findings of a rank that at least half of the others do not have."""
    own = next((one.found for one in ranks.summaries if one.rank == rank), ())
    by_finding = ranks_by_finding(ranks.summaries)
    return tuple(text for text in own if 2 * (len(by_finding[text]) - 1) < len(ranks.summaries) - 1)


def ranks_text(ranks: list[int]) -> str:
    """Return the first ranks by number, and how many more there are."""
    more = f" and {len(ranks) - RANKS_SHOWN} more" if len(ranks) > RANKS_SHOWN else ""
    return ", ".join(map(str, ranks[:RANKS_SHOWN])) + more
