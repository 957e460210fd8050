"""The ranks of a run side by side, readable for eight ranks and for a thousand."""

from collections.abc import Iterator
from itertools import pairwise
from statistics import median

from lightning_perf.records import PARTS, Ranks, RankSummary, ranks_by_finding
from lightning_perf.reports.cells import TAB, Cell, Heads, Rows, Value, number
from lightning_perf.reports.cells import seconds as seconds_cell
from lightning_perf.reports.cells import share as share_cell
from lightning_perf.reports.cells import size as size_cell
from lightning_perf.reports.document import AnyPart, Figure, Note, facts, table
from lightning_perf.reports.wording import count, line, seconds, share

_ALL = 8
"""Up to this many ranks are all listed."""
_WORST = 5
"""Ranks with most own work that are listed otherwise."""
_STRIP_CHARS = 64
_LOCAL_CODES = ("PD1", "PD2", "PD3", "PD8")
"""Starts of the codes of findings about data, transfer, compute and the machine."""
_LEVELS = "▁▂▃▄▅▆▇█"


def rank_title(ranks: Ranks) -> str:
    """Return the heading of the section."""
    n_nodes = len({one.node for one in ranks.summaries})
    n = len(ranks.summaries)
    n_reported = "" if ranks.world_size in (None, n) else f"{n} of "
    return f"Ranks: {n_reported}{ranks.world_size or n} on {count(n_nodes, 'machine')}, mean per step"


def rank_parts(ranks: Ranks | None) -> Iterator[AnyPart]:
    """Yield own work and waiting of each rank, how they spread, and ranks that are missing; nothing for one rank."""
    if ranks is None or not ranks.summaries or len(ranks.summaries) + len(ranks.missing) < 2:
        return
    yield Figure("ranks", "Ranks")
    heads: Heads = ("rank", "own work", "data", "compute", "host", "waits", "batches")
    yield table(heads, rank_rows(ranks), key="slowest-ranks")
    strip = rank_strip(ranks)
    yield Note(f"by rank: {strip}" if strip else "")
    yield facts(rank_facts(ranks), "Spread")
    rows: Rows = [
        (Value(str(one.rank), one.rank), one.node, number(one.n_steps), seconds_cell(one.step_s),
         seconds_cell(one.own_s), *(seconds_cell(one.parts_s.get(part)) for part in PARTS),
         seconds_cell(one.waiting_s), share_cell(one.wait_share), one.slowest_name or "", number(one.n_batches),
         size_cell(one.peak_bytes))
        for one in ranks.summaries
    ]  # fmt: skip
    heads = ("rank", "machine", "steps", "step", "own work", *PARTS, "waits for ranks", "waits for data",
             "slowest callback", "batches", "peak memory")  # fmt: skip
    yield table(heads, rows, title="All ranks, mean per step", key="ranks", min_width=TAB)
    rows = [(Value(str(one.rank), one.rank), one.reason) for one in ranks.missing]
    yield table(("rank", "reason"), rows, title="Ranks without a report", key="missing-ranks", min_width=TAB)


def rank_rows(ranks: Ranks) -> list[tuple[Cell, ...]]:
    """Return all ranks if they are few; else those with most own work, the median and the least.

    Numbers of batches are left out if all ranks have the same.
    """
    by_own = sorted(ranks.summaries, key=lambda one: (-one.own_s, one.rank))
    if len(by_own) <= _ALL:
        rows: Rows = [_row(str(one.rank), one) for one in ranks.summaries]
    else:
        worst = [_row(str(one.rank), one) for one in by_own[:_WORST]]
        rows = [*worst, _median_row(ranks), _row(f"{by_own[-1].rank} (least)", by_own[-1])]
    is_even = len({one.n_batches for one in ranks.summaries}) == 1
    return [(*row[:-1], Value("")) for row in rows] if is_even else rows


def rank_strip(ranks: Ranks) -> str:
    """Return the own work of all ranks in order, one character each; empty for few ranks.

    Where there are more ranks than characters, each character is the largest of several neighbors.
    """
    own = [one.own_s for one in ranks.summaries]
    if len(own) <= _ALL:
        return ""
    bins = min(_STRIP_CHARS, len(own))
    edges = [round(i * len(own) / bins) for i in range(bins + 1)]
    most = [max(own[start:end]) for start, end in pairwise(edges)]
    low, high = min(own), max(own)
    if high <= 0 or high - low < 0.02 * high:
        return _LEVELS[0] * bins
    return "".join(_LEVELS[min(7, int(8 * (value - low) / (high - low)))] for value in most)


def rank_facts(ranks: Ranks) -> list[str]:
    """Return the spread of the ranks, findings of single ranks, and missing ranks."""
    own = sorted(one.own_s for one in ranks.summaries)
    texts = []
    if len(own) > 1 and own[0] > 0:
        texts.append(f"own work {seconds(own[0])} to {seconds(own[-1])} per step, median {seconds(median(own))}")
    waiting = [one.waiting_s for one in ranks.summaries if one.waiting_s is not None]
    if waiting:
        steps = [one.step_s for one in ranks.summaries if one.step_s > 0]
        texts.append(
            f"waits {seconds(min(waiting))} to {seconds(max(waiting))} per step"
            + (f" (median {share(median(waiting) / median(steps))})" if steps else "")
        )
    texts += _found_on_few(ranks)
    texts += [f"rank {one.rank}: {line(one.reason, 80)}" for one in ranks.missing[:3]]
    if len(ranks.missing) > 3:
        texts.append(f"{len(ranks.missing) - 3} more ranks did not report")
    return texts


def _found_on_few(ranks: Ranks) -> list[str]:
    """Return findings on data, compute or the machine that fewer than half of the ranks have."""
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


def _row(name: str, one: RankSummary) -> tuple[Cell, ...]:
    parts = (seconds_cell(one.parts_s.get(part)) for part in PARTS)
    return (name, seconds_cell(one.own_s), *parts, seconds_cell(one.waiting_s), number(one.n_batches))


def _median_row(ranks: Ranks) -> tuple[Cell, ...]:
    waiting = [one.waiting_s for one in ranks.summaries if one.waiting_s is not None]
    batches = [one.n_batches for one in ranks.summaries if one.n_batches is not None]
    parts = (seconds_cell(median(one.parts_s.get(part, 0.0) for one in ranks.summaries)) for part in PARTS)
    own_s = median(one.own_s for one in ranks.summaries)
    return ("median", seconds_cell(own_s), *parts, seconds_cell(median(waiting) if waiting else None),
            number(median(batches) if batches else None))  # fmt: skip
