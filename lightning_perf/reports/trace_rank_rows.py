"""The rows that set several ranks' traces beside one another, and those of collectives."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from lightning_perf.records import CollectiveTime, TraceRank, TraceRanks

from . import wording

N_ALL = 8
"""Up to so many ranks each has its row."""
_WORST = 6
_RANK_PARTS = ("data", "compute", "communication", "host")
RANK_HEADS = ("rank", "own", "data", "compute", "communication", "host", "waits", "others wait", "last")
COLLECTIVE_HEADS = ("kind", "size", "ranks", "n", "median", "not hidden", "bus bandwidth")


def straggler(ranks: TraceRanks) -> TraceRank:
    return max(ranks.ranks, key=lambda one: (one.straggler_share, one.own_s))


def rank_title(ranks: TraceRanks) -> str:
    """What the rows rest on."""
    clocks = "" if ranks.clock_spread_s is None else f", ends agree within {wording.seconds(ranks.clock_spread_s)}"
    return (
        f"{len(ranks.ranks)} ranks, mean of {wording.count(ranks.n_steps, 'step')} "
        f"({wording.count(ranks.n_matched, 'collective')} matched{clocks})"
    )


def rank_rows(ranks: TraceRanks) -> list[tuple[str, ...]]:
    """Who waits for whom; of many ranks those that hold others up most, and the median."""
    by_share = sorted(ranks.ranks, key=lambda one: (-one.straggler_share, -one.own_s, one.rank))
    shown = list(ranks.ranks) if len(by_share) <= N_ALL else by_share[:_WORST]
    rows = [_rank_row(str(one.rank), one) for one in shown]
    if len(shown) < len(by_share):
        parts = {part: median(one.parts_s.get(part, 0.0) for one in by_share) for part in _RANK_PARTS}
        middle = TraceRank(
            rank=-1, source="", step_s=median(one.step_s for one in by_share),
            own_s=median(one.own_s for one in by_share), waiting_s=median(one.waiting_s for one in by_share),
            transfer_s=median(one.transfer_s for one in by_share), parts_s=parts,
            last_fraction=median(one.last_fraction for one in by_share),
            straggler_share=median(one.straggler_share for one in by_share),
        )  # fmt: skip
        rows.append(_rank_row("median", middle))
    return rows


def _rank_row(name: str, one: TraceRank) -> tuple[str, ...]:
    parts = (wording.seconds(one.parts_s.get(part)) for part in _RANK_PARTS)
    waits = (wording.seconds(one.waiting_s), wording.share(one.straggler_share), wording.share(one.last_fraction))
    return (name, wording.seconds(one.own_s), *parts, *waits)


def _bandwidth(bytes_per_s: float | None) -> str:
    """In powers of ten, as links are sold and nccl-tests print it."""
    if bytes_per_s is None:
        return ""
    return f"{bytes_per_s / 1e9:.3g} GB/s" if bytes_per_s >= 1e8 else f"{bytes_per_s / 1e6:.3g} MB/s"


def collective_rows(collectives: Sequence[CollectiveTime]) -> list[tuple[str, ...]]:
    """Collectives by kind and size, those that take longest first."""
    return [
        (
            each.kind.replace("_", "-"), wording.size(each.mean_bytes), "" if each.group_size is None else
            str(each.group_size), f"{each.n:,}", wording.seconds(each.median_s), wording.seconds(each.exposed_s),
            _bandwidth(each.bus_bytes_per_s),
        )
        for each in collectives[:_WORST]
    ]  # fmt: skip
