"""What reports say of a run's ranks, worked out once, readable for eight and for a thousand."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import NamedTuple

from lightning_perf.records import PARTS, Ranks, RankSummary, ranks_by_finding

from .wording import count, line, seconds, share

_ALL = 8
"""Up to so many ranks each has its row."""
_WORST = 5
_STRIP = 64
_LOCAL_CODES = ("PD1", "PD2", "PD3", "PD8")
_LEVELS = "▁▂▃▄▅▆▇█"

HEADS = ("rank", "own", "data", "compute", "host", "waits", "batches")


class RankRow(NamedTuple):
    """One rank, or what is usual; cells as shown, in the order of ``HEADS``."""

    rank: str
    own: str
    data: str
    compute: str
    host: str
    waits: str
    batches: str


def is_worth_showing(ranks: Ranks) -> bool:
    """Whether there is something to compare, or a rank to miss."""
    return len(ranks.summaries) > 1 or bool(ranks.summaries and ranks.missing)


def rank_title(ranks: Ranks) -> str:
    """What the rows are about."""
    n_nodes = len({one.node for one in ranks.summaries})
    told = "" if ranks.world_size in (None, len(ranks.summaries)) else f"{len(ranks.summaries)} of "
    return f"Ranks: {told}{ranks.world_size or len(ranks.summaries)} on {count(n_nodes, 'machine')}, mean of a step"


def rank_rows(ranks: Ranks) -> list[RankRow]:
    """All ranks where they are few; else those with most work of their own, the median, and the one with least."""
    by_own = sorted(ranks.summaries, key=lambda one: (-one.own_s, one.rank))
    if len(by_own) <= _ALL:
        return [_row(str(one.rank), one) for one in ranks.summaries]
    rows = [_row(str(one.rank), one) for one in by_own[:_WORST]]
    return [*rows, _median_row(ranks), _row(f"{by_own[-1].rank} (least)", by_own[-1])]


def rank_table(ranks: Ranks) -> list[tuple[str, ...]]:
    """Heads and rows; batches are left out where all ranks have as many."""
    rows = [HEADS, *map(tuple, rank_rows(ranks))]
    is_even = len({one.n_batches for one in ranks.summaries}) == 1
    return [row[:-1] if is_even else row for row in rows]


def rank_strip(ranks: Ranks) -> str:
    """Own work of all ranks in order, a character each; of several neighbours the most; empty for few ranks."""
    own = [one.own_s for one in ranks.summaries]
    if len(own) <= _ALL:
        return ""
    bins = min(_STRIP, len(own))
    edges = [round(i * len(own) / bins) for i in range(bins + 1)]
    most = [max(own[start:end]) for start, end in pairwise(edges)]
    low, high = min(own), max(own)
    if high <= 0 or high - low < 0.02 * high:
        return _LEVELS[0] * bins
    return "".join(_LEVELS[min(7, int(8 * (value - low) / (high - low)))] for value in most)


def rank_facts(ranks: Ranks) -> list[str]:
    """How the ranks spread, and which are missing."""
    own = sorted(one.own_s for one in ranks.summaries)
    facts = []
    if len(own) > 1 and own[0] > 0:
        facts.append(f"own work from {seconds(own[0])} to {seconds(own[-1])} a step, median {seconds(median(own))}")
    waiting = [one.waiting_s for one in ranks.summaries if one.waiting_s is not None]
    if waiting:
        steps = [one.step_s for one in ranks.summaries if one.step_s > 0]
        facts.append(
            f"ranks wait for one another {seconds(min(waiting))} to {seconds(max(waiting))} a step"
            + (f" ({share(median(waiting) / median(steps))} of it)" if steps else "")
        )
    facts += _found_on_few(ranks)
    facts += [f"rank {one.rank}: {line(one.reason, 80)}" for one in ranks.missing[:3]]
    if len(ranks.missing) > 3:
        facts.append(f"{len(ranks.missing) - 3} more ranks did not report")
    return facts


def _found_on_few(ranks: Ranks) -> list[str]:
    """What fewer than half of the ranks found in their data, their computing or their machine."""
    few = [
        (text, where)
        for text, where in ranks_by_finding(ranks.summaries).items()
        if 2 * len(where) < len(ranks.summaries) and text.startswith(_LOCAL_CODES)
    ]
    return [
        f"{line(text, 80)} on {'rank' if len(where) == 1 else 'ranks'} {', '.join(map(str, where[:_WORST]))}"
        + (f" and {len(where) - _WORST} more" if len(where) > _WORST else "")
        for text, where in few[:_WORST]
    ]


def _row(name: str, one: RankSummary) -> RankRow:
    data, compute, host = (seconds(one.parts_s.get(part)) for part in PARTS)
    batches = "" if one.n_batches is None else str(one.n_batches)
    waits = "" if one.waiting_s is None else seconds(one.waiting_s)
    return RankRow(name, seconds(one.own_s), data, compute, host, waits, batches)


def _median_row(ranks: Ranks) -> RankRow:
    waiting = [one.waiting_s for one in ranks.summaries if one.waiting_s is not None]
    batches = [one.n_batches for one in ranks.summaries if one.n_batches is not None]
    data, compute, host = (seconds(median(one.parts_s.get(part, 0.0) for one in ranks.summaries)) for part in PARTS)
    return RankRow(
        "median",
        seconds(median(one.own_s for one in ranks.summaries)),
        data,
        compute,
        host,
        seconds(median(waiting)) if waiting else "",
        f"{median(batches):.0f}" if batches else "",
    )
