"""Simulate trials with typical machine noise and measure how often each statistical method is right.

Pure and seeded; the tests run a smaller version.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from lightning_perf.records import ArmRun, Interval
from lightning_perf.stats.estimates import levels, noise_band, ratio_interval
from lightning_perf.stats.verdicts import ArmComparison, compare
from lightning_perf.trials.judge import AGAIN, BASELINE, judge
from lightning_perf.trials.ladder import next_runs
from lightning_perf.trials.rounds import Candidate, Plan

STEP_S = 0.1
BLOCKS = 8
"""Blocks per run: few, as in a trial of several hundred steps."""

Blocks = NDArray[np.float64]
Compared = Callable[[Blocks, Blocks, NDArray[np.int64], NDArray[np.int64]], Interval | None]


class Noise(NamedTuple):
    """Noise of a machine, relative to the level of a run.

    Attributes:
        name: Name on the page.
        between: Standard deviation between runs.
        within: Standard deviation of blocks within a run.
        correlation: Correlation of consecutive blocks.
        is_heavy: Student's t with 3 degrees of freedom instead of a normal distribution, and one block in twenty slowed
            down by another program.
        drift: Linear slowdown of the machine from the first to the last run.
        walk: Standard deviation of a random walk from run to run.
    """

    name: str
    between: float = 0.01
    within: float = 0.01
    correlation: float = 0.6
    is_heavy: bool = False
    drift: float = 0.0
    walk: float = 0.0


NOISES = (
    Noise("runs differ by 1 %"),
    Noise("blocks differ more than runs", between=0.003, within=0.03, correlation=0.3),
    Noise("blocks of a run are strongly correlated", between=0.003, within=0.02, correlation=0.9),
    Noise("heavy tails", is_heavy=True),
    Noise("drift of 3 %", drift=0.03),
    Noise("heavy tails and drift of 3 %", is_heavy=True, drift=0.03),
    Noise("random walk, 0.5 % per run", between=0.005, walk=0.005),
)


def order(arms: Sequence[str], repeats: int) -> list[str]:
    """Return mirrored rounds: A B C, C B A, …"""
    return [arm for number in range(repeats) for arm in (arms if number % 2 == 0 else arms[::-1])]


class Machine:
    """Simulate consecutive runs of one trial."""

    def __init__(self, noise: Noise, rng: np.random.Generator, n_runs: int) -> None:
        self._noise = noise
        self._rng = rng
        self._n_runs = max(2, n_runs)
        self._position = 0
        self._walked = 0.0

    def run(self, speedup: float) -> Blocks:
        """Return the block means of the next run in seconds, shape (blocks,)."""
        noise = self._noise
        within = np.empty(BLOCKS)
        innovations = self._draw(BLOCKS)
        within[0] = innovations[0]
        fresh = math.sqrt(1 - noise.correlation**2)
        for i in range(1, BLOCKS):
            within[i] = noise.correlation * within[i - 1] + fresh * innovations[i]
        logs = noise.between * self._draw(1) + noise.within * within
        if noise.is_heavy:
            logs = logs + (self._rng.random(BLOCKS) < 0.05) * 0.05 * self._rng.exponential(size=BLOCKS)
        self._walked += noise.walk * float(self._rng.normal())
        logs = logs + noise.drift * self._position / (self._n_runs - 1) + self._walked
        self._position += 1
        return STEP_S / speedup * np.exp(logs)

    def _draw(self, n: int) -> NDArray[np.float64]:
        if self._noise.is_heavy:
            return self._rng.standard_t(3, size=n) / math.sqrt(3)
        return self._rng.normal(size=n)


class Stage(NamedTuple):
    """Runs of one stage: block means by run, and their positions in the order, by arm."""

    blocks: dict[str, Blocks]
    places: dict[str, NDArray[np.int64]]

    def pair(self, base: Sequence[str], new: str) -> tuple[Blocks, Blocks, NDArray[np.int64], NDArray[np.int64]]:
        """Return blocks and positions of arms that count as one, and of another arm."""
        return (
            np.concatenate([self.blocks[arm] for arm in base]),
            self.blocks[new],
            np.concatenate([self.places[arm] for arm in base]),
            self.places[new],
        )


def stage(noise: Noise, rng: np.random.Generator, speedups: dict[str, float], repeats: int) -> Stage:
    """Simulate one stage.

    Args:
        noise: Noise of the machine.
        rng: Random generator.
        speedups: True speedup by arm, in the order of a round.
        repeats: Number of rounds.
    """
    arms = order(list(speedups), repeats)
    machine = Machine(noise, rng, len(arms))
    blocks: dict[str, list[Blocks]] = {arm: [] for arm in speedups}
    places: dict[str, list[int]] = {arm: [] for arm in speedups}
    for place, arm in enumerate(arms):
        blocks[arm].append(machine.run(speedups[arm]))
        places[arm].append(place)
    return Stage({arm: np.array(rows) for arm, rows in blocks.items()}, {a: np.array(p) for a, p in places.items()})


def welch(base: Blocks, new: Blocks, base_at: NDArray[np.int64], new_at: NDArray[np.int64]) -> Interval | None:
    """Return the interval by the method in use."""
    return ratio_interval(base.tolist(), new.tolist(), base_at.tolist(), new_at.tolist())


def welch_with_drift_left_in(base: Blocks, new: Blocks, *_: object) -> Interval | None:
    """Return the same interval without removing the drift."""
    return ratio_interval(base.tolist(), new.tolist())


def percentile_bootstrap(base: Blocks, new: Blocks, *_: object) -> Interval:
    """Resample runs, then blocks within each run; return percentiles of the ratio."""
    rng = np.random.default_rng(0)

    def drawn(runs: Blocks, n: int = 500) -> NDArray[np.float64]:
        n_runs, n_blocks = runs.shape
        rows = rng.integers(n_runs, size=(n, n_runs, 1))
        return np.log(np.median(runs[rows, rng.integers(n_blocks, size=(n, n_runs, n_blocks))], axis=-1)).mean(axis=-1)

    low, middle, high = np.exp(np.quantile(drawn(base) - drawn(new), [0.025, 0.5, 0.975]))
    return Interval(value=float(middle), low=float(low), high=float(high))


def bca_bootstrap(base: Blocks, new: Blocks, *_: object) -> Interval:
    """Return SciPy's bias-corrected and accelerated bootstrap of the runs' levels."""
    a, b = levels(base.tolist()), levels(new.tolist())

    def difference(x: NDArray[np.float64], y: NDArray[np.float64], axis: int = -1) -> NDArray[np.float64]:
        return np.asarray(x.mean(axis=axis) - y.mean(axis=axis))

    found = stats.bootstrap((a, b), difference, n_resamples=500, method="BCa", rng=np.random.default_rng(0))
    interval = found.confidence_interval
    return Interval(value=math.exp(a.mean() - b.mean()), low=math.exp(interval.low), high=math.exp(interval.high))


ALONE = {BASELINE: 1.0, AGAIN: 1.0, "b": 1.0, "c": 1.0, "d": 1.0}
ON_TOP = {BASELINE: 1.0, "b": 1.0, "b+c": 1.0}


def coverage(
    noise: Noise, repeats: int, n: int, seed: int = 0, method: Compared = welch, is_rung: bool = False
) -> float:
    """Return the share of n simulated trials whose 95 % interval contains the true ratio.

    Args:
        noise: Noise of the machine.
        repeats: Runs per arm.
        n: Number of trials.
        seed: Random seed.
        method: Computes the interval.
        is_rung: An arm against the rung below (as many runs each) instead of against both halves of the A/A pair.
    """
    rng = np.random.default_rng([seed, repeats])
    held = 0
    for _ in range(n):
        runs = stage(noise, rng, ON_TOP if is_rung else ALONE, repeats)
        interval = method(*(runs.pair(["b"], "b+c") if is_rung else runs.pair([BASELINE, AGAIN], "c")))
        held += interval is not None and interval.low <= 1 <= interval.high
    return held / n


def calls(noise: Noise, repeats: int, speedup: float, n: int, seed: int = 0) -> dict[str, float]:
    """Return the shares of verdicts in n simulated trials of an arm with this true speedup."""
    rng = np.random.default_rng([seed, repeats])
    shares: dict[str, float] = {}
    for _ in range(n):
        verdict = _judged(stage(noise, rng, {**ALONE, "c": speedup}, repeats)).verdict
        shares[verdict] = shares.get(verdict, 0) + 1 / n
    return shares


def median_band(noise: Noise, repeats: int, n: int, seed: int = 0) -> float:
    """Return the median noise band of n simulated trials."""
    rng = np.random.default_rng([seed, repeats])
    return float(np.median([_band(stage(noise, rng, ALONE, repeats)) for _ in range(n)]))


def _band(runs: Stage) -> float:
    base, new, base_at, new_at = runs.pair([BASELINE], AGAIN)
    return noise_band([*base.tolist(), *new.tolist()], [*base_at.tolist(), *new_at.tolist()])


def _judged(runs: Stage) -> ArmComparison:
    base, new, base_at, new_at = runs.pair([BASELINE, AGAIN], "c")
    return compare(base.tolist(), new.tolist(), _band(runs), base_at.tolist(), new_at.tolist())


def stopped_early(
    noise: Noise, speedup: float, n: int, repeats: int = 3, seed: int = 0
) -> tuple[dict[str, float], float]:
    """Simulate whole trials with the real strategy, which stops an arm as soon as its verdict is clear.

    Args:
        noise: Noise of the machine.
        speedup: True speedup of each of two treatments, measured alone.
        n: Number of trials.
        repeats: Planned rounds; an arm gets more if they would probably decide it.
        seed: Random seed.

    Returns:
        Shares of verdicts, and the mean number of runs as a fraction of ``repeats`` full rounds.
    """
    rng = np.random.default_rng(seed)
    plan = Plan(candidates=(Candidate(treatment="b"), Candidate(treatment="c")), repeats=repeats, has_ladder=False)
    shares: dict[str, float] = {}
    n_made = 0
    for _ in range(n):
        machine = Machine(noise, rng, 4 * repeats)
        runs: list[ArmRun] = []
        while planned := next_runs(plan, runs):
            for each in planned:
                blocks = tuple(machine.run(speedup if each.treatments else 1.0).tolist())
                runs.append(
                    ArmRun(arm=each.arm, repeat=each.repeat, position=each.position, status="ok", block_means_s=blocks)
                )
        n_made += len(runs)
        for arm in judge(runs).arms:
            if arm.treatments:
                shares[arm.verdict] = shares.get(arm.verdict, 0) + 0.5 / n
    return shares, n_made / (n * 4 * repeats)
