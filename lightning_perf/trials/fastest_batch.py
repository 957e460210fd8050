"""The batch size beyond which throughput stops growing, within memory: the largest is not the fastest.

Pure decisions on the runs that the process which started them measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from lightning_perf.records import ArmRun
from lightning_perf.records.base import Record
from lightning_perf.stats.headroom import fit_samples

TOLERANCE = 0.05
"""Of the best throughput, what a smaller batch may give away: larger batches cost memory and, at the same learning
rate, steps."""

GROWTH = 0.05
"""What doubling the batch must gain for the next doubling to be worth a measurement."""

MARGIN = 0.1
"""Of the capacity, left free: peaks vary with shapes, and a full allocator retries and fragments."""

SMALL_STEP = 1.26
"""Two sizes closer than a third of a doubling are not worth telling apart."""


TREATMENT = "batch-size"
"""Of which ``x2`` is twice the user's own size: sizes are searched as multiples."""


class BatchPoint(Record, frozen=True, kw_only=True):
    """One batch size measured.

    Attributes:
        batch_size: Samples a batch of one rank, or how many times the user's own size.
        samples_per_s: Of all ranks, or batches of the user's own size a second; None when it failed.
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


def resized(below: str, times: int) -> str:
    """Id of an arm with so many times the batch size on top of another."""
    added = f"{TREATMENT}=x{times}"
    return added if below == "baseline" else f"{below}+{added}"


def points_of(runs: Sequence[ArmRun], below: str) -> tuple[BatchPoint, ...]:
    """What runs say of multiples of the batch size on top of an arm, in the order made.

    Args:
        runs: Finished ones: those of ``below`` are the multiple 1.
        below: Id of the arm.
    """
    points = []
    for run in runs:
        times = 1 if run.arm == below else _times(run.arm, below)
        if times is None:
            continue
        rate = times * run.batches_per_step / median(run.block_means_s) if run.block_means_s else None
        peak = run.peak_device_bytes if run.peak_device_bytes is not None else run.peak_host_bytes
        reason = "" if rate is not None else run.reason or "no steady state"
        points.append(BatchPoint(batch_size=times, samples_per_s=rate, peak_bytes=peak, reason=reason))
    return tuple(points)


def knee(points: Sequence[BatchPoint]) -> BatchChoice | None:
    """The smallest batch size that is about as fast as the fastest; None when none ran.

    Args:
        points: In any order; of several at one size the median counts.
    """
    rates = _rates(points)
    if not rates:
        return None
    best = max(rates.values())
    size = min(size for size, rate in rates.items() if rate >= (1 - TOLERANCE) * best)
    return BatchChoice(batch_size=size, samples_per_s=rates[size], reason=_reason(points, rates, size, best))


def next_size(points: Sequence[BatchPoint], capacity_bytes: int | None = None) -> int | None:
    """The batch size to measure next; None when the knee is known well enough.

    Doubles while that gains ``GROWTH`` and should fit; then looks once between the best size and its neighbours.

    Args:
        points: Measured so far, in any order; at least one that ran.
        capacity_bytes: Smallest of any rank; None where it is not known (a size that fails then shows the limit).
    """
    rates = _rates(points)
    if not rates:
        return None
    limit = _limit(points, capacity_bytes)
    failed = min((point.batch_size for point in points if point.samples_per_s is None), default=None)
    largest = max(rates)
    before = max((size for size in rates if size < largest), default=None)
    if before is None or rates[largest] >= (1 + GROWTH * math.log2(largest / before)) * rates[before]:
        larger = 2 * largest if failed is None or 2 * largest < failed else _middle(largest, failed)
        if larger is not None and larger > limit:
            larger = _rounded(limit, largest)
        return larger if larger is not None and larger >= SMALL_STEP * largest else None
    best = max(rates, key=lambda size: rates[size])
    # Between sizes that are about as fast there is nothing to find.
    slower = [other for other in _neighbours(best, rates) if rates[other] < (1 - TOLERANCE) * rates[best]]
    between = [_middle(best, other) for other in slower]
    return next((size for size in between if size is not None and size <= limit), None)


def _times(arm: str, below: str) -> int | None:
    """By how much an arm's batch is larger than that of the arm below; None where it is not such an arm."""
    start = resized(below, 0)[:-1]
    rest = arm[len(start) :]
    return int(rest) if arm.startswith(start) and rest.isdigit() else None


def _rates(points: Sequence[BatchPoint]) -> dict[int, float]:
    by_size: dict[int, list[float]] = {}
    for point in points:
        if point.samples_per_s is not None:
            by_size.setdefault(point.batch_size, []).append(point.samples_per_s)
    return {size: sorted(rates)[len(rates) // 2] for size, rates in sorted(by_size.items())}


def _limit(points: Sequence[BatchPoint], capacity_bytes: int | None) -> float:
    """Samples that should fit by the line through the peaks; infinity where that is not known."""
    if capacity_bytes is None:
        return math.inf
    line = fit_samples([(p.batch_size, p.peak_bytes) for p in points if p.samples_per_s and p.peak_bytes is not None])
    return math.inf if line is None else max(0.0, (capacity_bytes * (1 - MARGIN) - line[0]) / line[1])


def _rounded(limit: float, largest: int) -> int:
    """The largest size within the limit that keeps what ``largest`` is a multiple of, up to 8: kernels like that."""
    step = math.gcd(largest, 8)
    return math.floor(limit / step) * step


def _neighbours(best: int, rates: dict[int, float]) -> list[int]:
    below = max((size for size in rates if size < best), default=None)
    above = min((size for size in rates if size > best), default=None)
    return [size for size in (above, below) if size is not None]


def _middle(a: int, b: int) -> int | None:
    """A size between two, a multiple of what they are multiples of if possible; None where they are too close."""
    low, high = min(a, b), max(a, b)
    step = math.gcd(math.gcd(low, high), 8)
    while step >= 1:
        middle = round(math.sqrt(low * high) / step) * step
        if middle >= SMALL_STEP * low and high >= SMALL_STEP * middle:
            return middle
        step //= 2
    return None


def _reason(points: Sequence[BatchPoint], rates: dict[int, float], size: int, best: float) -> str:
    fastest = max(rates, key=lambda s: rates[s])
    failed = sorted(point.batch_size for point in points if point.samples_per_s is None)
    limit = ""
    if failed:
        why = next(point.reason for point in points if point.batch_size == failed[0])
        limit = f"; {failed[0]:,} does not run ({why or 'failed'})"
    if size == fastest:
        return f"the fastest of {len(rates)} sizes{limit}"
    return f"{rates[size] / best:.0%} of the throughput at {fastest:,}, with {size / fastest:.0%} of its samples{limit}"
