"""The batch size beyond which throughput stops growing, within memory: the largest is not the fastest.

Pure decisions on figures: with several ranks, rank 0 decides and broadcasts, on the smallest memory of any rank.
"""

from __future__ import annotations

from collections.abc import Sequence

from lightning_perf.records.base import Record


class BatchPoint(Record, frozen=True, kw_only=True):
    """One batch size measured.

    Attributes:
        batch_size: Samples a batch of one rank.
        samples_per_s: Of all ranks; None when it failed.
        peak_bytes: Highest of any rank; None when it was not read.
        reason: Why it failed, ``"out of memory"``; empty otherwise.
    """

    batch_size: int
    samples_per_s: float | None
    peak_bytes: int | None = None
    reason: str = ""


class BatchChoice(Record, frozen=True, kw_only=True):
    """The batch size to use.

    Attributes:
        batch_size: The smallest whose throughput is within ``TOLERANCE`` of the best.
        samples_per_s: Its throughput.
        reason: One sentence.
    """

    batch_size: int
    samples_per_s: float
    reason: str


def knee(points: Sequence[BatchPoint]) -> BatchChoice | None:
    """The smallest batch size that is about as fast as the fastest; None when none ran."""
    raise NotImplementedError


def next_size(points: Sequence[BatchPoint], capacity_bytes: int | None = None) -> int | None:
    """The batch size to measure next; None when the knee is known well enough."""
    raise NotImplementedError
