"""What the rules on many ranks read from a session, each with the reason to skip where it is missing."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from lightning_perf.records import Ranks, RankSummary, Session

from .rule import Skip


def ranks_of(session: Session) -> Ranks:
    """The ranks of the run, at least two of which told what they measured.

    Raises:
        Skip: One rank, or too few reported.
    """
    if session.run.world_size < 2:
        raise Skip("the run has one rank")
    ranks = session.ranks
    if ranks is None or len(ranks.summaries) < 2:
        raise Skip(session.missing.get("ranks", "fewer than two ranks told what they measured"))
    return ranks


def usual_of(ranks: Ranks, value: Callable[[RankSummary], float], but: RankSummary) -> float:
    """The median of a figure over all ranks but one."""
    return median(value(one) for one in ranks.summaries if one.rank != but.rank)
