"""Search for the batch size beyond which throughput stops growing, within memory, by the runs measured so far."""

import math
from collections.abc import Sequence
from statistics import median, median_high

from lightning_perf.records import ArmRun
from lightning_perf.records.base import Record
from lightning_perf.stats.headroom import fit_samples

from .judge import treatments_of
from .rounds import arm_id

TOLERANCE = 0.05
"""Fraction of the best throughput that a smaller batch may lose: larger batches cost memory and, at the same learning
rate, steps."""

GROWTH = 0.05
"""Gain of doubling the batch from which the next doubling is measured."""

MARGIN = 0.1
"""Fraction of the capacity left free: peaks vary with shapes, and a full allocator retries and fragments."""

SMALL_STEP = 1.26
"""Smallest ratio between two sizes that are compared: a third of a doubling."""

TREATMENT = "batch-size"
"""Treatment whose value ``x2`` doubles the user's size: sizes are searched as multiples."""


class BatchPoint(Record, frozen=True, kw_only=True):
    """Measurement of one batch size.

    Attributes:
        batch_size: Samples per batch of one rank, or multiples of the user's own size.
        samples_per_s: Throughput of all ranks, in batches of the user's size if samples are unknown; None if the run
            failed, or has no steady state.
        peak_bytes: Highest peak memory of any rank; None if it was not read.
    """

    batch_size: int
    samples_per_s: float | None
    peak_bytes: int | None = None


def resized(below: str, times: int) -> str:
    """Return the id of an arm with a multiple of the batch size on top of another arm."""
    return arm_id([*treatments_of(below), f"{TREATMENT}=x{times}"])


def points_of(runs: Sequence[ArmRun], below: str) -> tuple[BatchPoint, ...]:
    """Return the points of finished runs, in order; runs of the arm ``below`` have the user's own batch size."""
    points = []
    for run in runs:
        times = 1 if run.arm == below else _times(run.arm, below)
        if times is None:
            continue
        # The last batches of a small dataset are shorter than the multiple says.
        n_samples = times * run.batches_per_step if run.samples_per_step is None else run.samples_per_step
        rate = n_samples / median(run.block_means_s) if run.block_means_s else None
        peak = run.peak_device_bytes if run.peak_device_bytes is not None else run.peak_host_bytes
        points.append(BatchPoint(batch_size=times, samples_per_s=rate, peak_bytes=peak))
    return tuple(points)


def knee(points: Sequence[BatchPoint]) -> int | None:
    """Return the smallest batch size within ``TOLERANCE`` of the best throughput; None if no run succeeded."""
    rates = _rates(points)
    best = max(rates.values(), default=0.0)
    return min((size for size, rate in rates.items() if rate >= (1 - TOLERANCE) * best), default=None)


def next_size(points: Sequence[BatchPoint], capacity_bytes: int | None = None) -> int | None:
    """Return the batch size to measure next; None if the knee is known well enough.

    The size is doubled while that gains ``GROWTH`` and should fit; then one size between the best and each neighbor is
    tried. ``capacity_bytes`` is the memory of the smallest rank; if it is None, a run that fails shows the limit.
    """
    rates = _rates(points)
    if not rates:
        return None
    limit = _limit(points, capacity_bytes)
    tried, largest = {point.batch_size for point in points}, max(rates)
    failed = min((size for size in tried if size > largest), default=None)
    before = max((size for size in rates if size < largest), default=None)
    if before is None or rates[largest] >= (1 + GROWTH * math.log2(largest / before)) * rates[before]:
        larger = 2 * largest if failed is None or 2 * largest < failed else _middle(largest, failed)
        if larger is not None and larger > limit:
            larger = _rounded(limit, largest)
        return larger if larger is not None and larger >= SMALL_STEP * largest else None
    best = max(rates, key=lambda size: rates[size])
    # Sizes between two that are about as fast would be about as fast too.
    slower = [other for other in _adjacent_sizes(best, rates) if rates[other] < (1 - TOLERANCE) * rates[best]]
    between = [_middle(best, other) for other in slower]
    return next((size for size in between if size is not None and size <= limit and size not in tried), None)


def _times(arm: str, below: str) -> int | None:
    """Return the multiple of the batch size that an arm has on top of ``below``; None for other arms."""
    start = resized(below, 0)[:-1]
    rest = arm[len(start) :]
    return int(rest) if arm.startswith(start) and rest.isdigit() else None


def _rates(points: Sequence[BatchPoint]) -> dict[int, float]:
    """Return the median throughput of each batch size, smallest size first."""
    by_size: dict[int, list[float]] = {}
    for point in points:
        if point.samples_per_s is not None:
            by_size.setdefault(point.batch_size, []).append(point.samples_per_s)
    return {size: median_high(rates) for size, rates in sorted(by_size.items())}


def _limit(points: Sequence[BatchPoint], capacity_bytes: int | None) -> float:
    """Return the largest size that should fit, by a line through the measured peaks; infinity if unknown."""
    if capacity_bytes is None:
        return math.inf
    line = fit_samples([(p.batch_size, p.peak_bytes) for p in points if p.samples_per_s and p.peak_bytes is not None])
    return math.inf if line is None else max(0.0, (capacity_bytes * (1 - MARGIN) - line[0]) / line[1])


def _rounded(limit: float, largest: int) -> int:
    """Return the largest size within the limit that keeps the common factor with 8: kernels run faster with it."""
    step = math.gcd(largest, 8)
    return math.floor(limit / step) * step


def _adjacent_sizes(best: int, rates: dict[int, float]) -> list[int]:
    below = max((size for size in rates if size < best), default=None)
    above = min((size for size in rates if size > best), default=None)
    return [size for size in (above, below) if size is not None]


def _middle(a: int, b: int) -> int | None:
    """Return a size between two, with their common factor with 8 if possible; None if they are too close."""
    low, high = min(a, b), max(a, b)
    step = math.gcd(math.gcd(low, high), 8)
    while step >= 1:
        middle = round(math.sqrt(low * high) / step) * step
        if middle >= SMALL_STEP * low and high >= SMALL_STEP * middle:
            return middle
        step //= 2
    return None
