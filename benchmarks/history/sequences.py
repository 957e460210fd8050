"""Simulated sequences of runs: how often runs of the same training are called slower, and regressions are found.

All sequences of a row are computed at once, with the levels of ``stats.next_run`` and its formulas for arrays;
``_check`` compares them with what it says of single sequences.
"""

from __future__ import annotations

import math
import statistics
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from lightning_perf.history.run_history import MIN_STEPS
from lightning_perf.history.slower import parts_of_alpha
from lightning_perf.stats import next_run
from lightning_perf.stats.comparison import BAND
from lightning_perf.stats.next_run import TimeSeries, alpha_of, excess, midmean, threshold

Array = NDArray[np.float64]

N_POOL, RUN_STEPS, EPOCH_STEPS, PART = 8000, 1000, 200, 8
"""Runs that sequences draw from, steps of a run and of an epoch, and steps of a part, as in ``history.slower``."""

COMPARED_AT = (MIN_STEPS, 2 * MIN_STEPS, 4 * MIN_STEPS)
"""Steps at which a run is compared."""

N_EARLIER = (3, 5, 10, 20)
SLOW_SHARE, SLOW_FACTOR = 0.01, 5.0
BEST_ALPHA = 0.01
"""False alarms of the best possible test."""

PARTS_OF_ALPHA = parts_of_alpha(["step"], ["data_wait", "forward", "backward"])
"""The step and three phases are compared."""

DISTURBED = 1.15
SPEED_ERROR = 0.02
N_CHECKED = 20

NOISES: dict[str, dict[str, Any]] = {
    "runs differ by 0.5 %": {"between": 0.005},
    "runs differ by 1 %": {"between": 0.01},
    "runs differ by 2 %": {"between": 0.02},
    "runs differ by 3 %": {"between": 0.03},
    "runs differ by 1 %, steps by 3 %": {"between": 0.01, "within": 0.03},
    "runs differ by 1 % and drift by 1 %": {"between": 0.01, "drift": 0.01},
    "runs differ by 1 %, one in twenty by 15 % more": {"between": 0.01, "disturbed": 0.05},
    "runs differ by 1 %, steps by 30 %, correlated by 0.9": {"between": 0.01, "within": 0.3, "phi": 0.9},
    "runs differ by 1 %, the machine by 10 %": {"between": 0.01, "machine": 0.1, "share": 0.7},
    "runs differ by 2 %, steps and the machine by 3 %": {
        "between": 0.02,
        "within": 0.03,
        "machine": 0.03,
        "share": 0.7,
    },
    "runs differ and drift by 1 %, an unrelated machine by 10 %": {"between": 0.01, "drift": 0.01, "machine": 0.1},
}
"""Standard deviations. A drift is that of an AR(1) process over the runs, with a correlation of 0.8, and so is the
machine's speed, which differs by 2 % unless stated otherwise. The fixed piece of work takes longer by as much, within
``SPEED_ERROR``, and a step by ``share`` of it: nothing in most rows."""


def section(n: int) -> str:
    """Return the part of the page on ``n`` simulated sequences per row."""
    table = "\n".join(
        f"| {name} | {n_earlier} | {' | '.join(f'{share:.1%}' for share in shares)} | {best(n_earlier, **noise)} |"
        for row, (name, noise) in enumerate(NOISES.items())
        for n_earlier, shares in zip(N_EARLIER, _rates(n, row, noise), strict=True)
    )
    clean = (1 - NOISES["runs differ by 1 %, one in twenty by 15 % more"]["disturbed"]) ** np.array(N_EARLIER)
    least = ", ".join(f"{0.95 * 0.05 * share:.1%}" for share in clean)
    first, second, last = COMPARED_AT
    return f"""## False alarms, and regressions found

Runs have {RUN_STEPS // EPOCH_STEPS} epochs of {EPOCH_STEPS} steps, and each is compared with those before it by its
time per step. Steps differ by 10 % unless stated otherwise, with a correlation of 0.6, and one in a hundred takes five
times as long. A fixed piece of work, timed in each run, shows how fast the machine was, within {SPEED_ERROR:.0%}; this
differs by 2 % and has no effect on the steps, but with the two noises before the last a step takes longer by 0.7 of
it. Three phases are compared with all others, too; the ratio of each has noise of its own as large as that of the
steps, and whatever else must hold for a phase to be named is left out.
*False alarms*: runs of the same training that are called slower at {first}, {second} or {last} steps.
Then the regressions of 10 % that are found at {first} steps and by {last} steps, and those of 20 % at {first} steps.
*Best possible*: regressions of 10 % that a test finds at {first} steps which knows all standard deviations, has
{BEST_ALPHA:.0%} false alarms at this one comparison, and sees no slow steps. A share of 1 % of {n:,} sequences has a
standard error of {math.sqrt(0.01 * 0.99 / n):.2%}.

| noise | earlier runs | false alarms | 10 % found | by {last} steps | 20 % found | best possible, 10 % |
|:--|--:|--:|--:|--:|--:|--:|
{table}

A run that is 15 % slower because another program disturbs it counts as a false alarm here, although nothing in its
times differs from a regression. As long as no earlier run was disturbed, its sequence is one of the row *runs differ
by 1 %* with a planted regression. So a test that finds 95 % of regressions of 15 % there calls at least
0.95 · 0.05 · 0.95ⁿ of the runs of that row slower: {least} with {", ".join(map(str, N_EARLIER))} earlier runs."""


class _Pool(NamedTuple):
    """Runs without differences between runs, by run: log levels, and squares of the levels of parts within runs."""

    whole: Array
    started: list[Array]
    squares: list[Array]
    dfs: list[int]
    parts: Array


def _pool(within: float = 0.1, phi: float = 0.6) -> _Pool:
    rng = np.random.default_rng(1)
    n_epochs = RUN_STEPS // EPOCH_STEPS
    parts = np.concatenate([_parts(rng, 1000, n_epochs, within, phi) for _ in range(N_POOL // 1000)])
    started, squares, dfs = [], [], []
    for steps in COMPARED_AT:
        n = max(2, RUN_STEPS // steps)
        size = parts.shape[1] // n
        levels = midmean(parts[:, : n * size].reshape(N_POOL, n, size))
        started.append(midmean(parts[:, : steps // PART]))
        squares.append(levels.var(axis=1) * n * (RUN_STEPS / n / steps))
        dfs.append(n - 1)
    return _Pool(midmean(parts), started, squares, dfs, parts)


def _parts(rng: np.random.Generator, n: int, n_epochs: int, within: float, phi: float) -> Array:
    """Return the log times per step of parts of runs, without the slowest step if it is slow, shape (runs, parts)."""
    shocks = math.sqrt(1 - phi**2) * rng.standard_normal((n, n_epochs, EPOCH_STEPS))
    series, _ = lfilter([1.0], [1.0, -phi], shocks, zi=phi * rng.standard_normal((n, n_epochs, 1)))
    steps = np.exp(within * series)
    steps[rng.random(steps.shape) < SLOW_SHARE] *= SLOW_FACTOR
    steps = steps.reshape(n, -1, PART)
    slowest = steps.max(axis=2)
    others = (steps.sum(axis=2) - slowest) / (PART - 1)
    return np.log(np.where(slowest > 3 * others, others, steps.mean(axis=2)))


def _rates(n: int, row: int, noise: dict[str, Any]) -> list[list[float]]:
    """Return the shares of one noise for each number of earlier runs."""
    noise, rng = dict(noise), np.random.default_rng(row)
    between, drift, disturbed = noise.pop("between"), noise.pop("drift", 0.0), noise.pop("disturbed", 0.0)
    machine, share = noise.pop("machine", 0.02), noise.pop("share", 0.0)
    pool, found = _pool(**noise), []
    for n_earlier in N_EARLIER:
        which = rng.integers(N_POOL, size=(n_earlier + 1, n))
        shift = between * rng.standard_normal(which.shape) + _drifting(rng, n_earlier + 1, n, drift)
        shift += math.log(DISTURBED) * (rng.random(which.shape) < disturbed)
        slower = _drifting(rng, n_earlier + 1, n, machine)
        shift += share * slower
        speeds = slower + SPEED_ERROR * rng.standard_normal(which.shape)
        margins = [_margin(pool, look, which, shift, speeds) for look in range(len(COMPARED_AT))]
        _check(pool, which, shift, speeds, margins[0])
        by_phase = [_phase_margins(rng, pool, which.shape, between, drift) for _ in range(len(PARTS_OF_ALPHA) - 1)]
        ten, twenty = math.log(1.1), math.log(1.2)
        worst = np.max(margins, axis=0)
        any_worst = np.max([worst, *by_phase], axis=0)
        cases = (any_worst > 0, margins[0] + ten > 0, worst + ten > 0, margins[0] + twenty > 0)
        found.append([float(np.mean(each)) for each in cases])
    return found


def _drifting(rng: np.random.Generator, n_runs: int, n: int, sd: float) -> Array:
    values = [sd * rng.standard_normal(n)]
    for _ in range(n_runs - 1):
        values.append(0.8 * values[-1] + 0.6 * sd * rng.standard_normal(n))
    return np.array(values)


def _phase_margins(
    rng: np.random.Generator, pool: _Pool, shape: tuple[int, ...], between: float, drift: float
) -> Array:
    """Return by how much the ratio of a step to its other phases exceeds, at the worst time, what is called slower."""
    which = rng.integers(N_POOL, size=shape)
    shift = between * rng.standard_normal(shape) + _drifting(rng, *shape, drift)
    part = min(PARTS_OF_ALPHA.values())
    return np.max([_margin(pool, look, which, shift, None, part) for look in range(len(COMPARED_AT))], axis=0)


def _margin(
    pool: _Pool,
    look: int,
    which: NDArray[np.int64],
    shift: Array,
    speeds: Array | None,
    part: float = PARTS_OF_ALPHA["step"],
) -> Array:
    """Return by how much each sequence's new run exceeds what is called slower."""
    earlier, new = which[:-1], which[-1]
    starts = pool.started[look][earlier] - pool.whole[earlier]
    known = next_run.Levels(pool.whole[earlier] + shift[:-1], pool.started[look][new] + shift[-1] - starts.mean(axis=0))
    if speeds is not None:
        known = next_run.remove_machine_speed(known, speeds[:-1], speeds[-1])
    df = pool.dfs[look] * len(earlier)
    within = pool.squares[look][earlier].sum(axis=0) / df * (1 - COMPARED_AT[look] / RUN_STEPS)
    limit = next_run.predicted_excess(known, within, df).quantile(1 - part * alpha_of(look))
    return np.asarray(known.excess - np.maximum(math.log1p(BAND), limit))


def _check(pool: _Pool, which: NDArray[np.int64], shift: Array, speeds: Array, margins: Array) -> None:
    """Compare some sequences with the functions that compare a run with earlier ones."""
    for i in range(N_CHECKED):
        parts = pool.parts[which[:, i]] + shift[:, i, None]
        fixed_s = np.exp(speeds[:, i]).tolist()
        runs = [TimeSeries(*each) for each in zip(np.exp(parts).tolist(), [PART] * len(parts), fixed_s, strict=True)]
        new = runs[-1]._replace(step_s=runs[-1].step_s[: COMPARED_AT[0] // PART])
        limit = max(math.log1p(BAND), threshold(runs[:-1], new, PARTS_OF_ALPHA["step"] * alpha_of(0)))
        np.testing.assert_allclose(margins[i], excess(runs[:-1], new) - limit, atol=1e-9)


def best(
    n_earlier: int,
    *,
    between: float,
    within: float = 0.1,
    phi: float = 0.6,
    drift: float = 0.0,
    disturbed: float = 0.0,
    **_: float,
) -> str:
    """Return the power of the best test at 200 steps: all covariances of the runs are known, only their mean is not.

    It also knows how much slower the machine is.
    """
    if disturbed:  # such a run is no different from a regression
        return "–"
    of_step = within**2 * (1 + phi) / (1 - phi)
    at = np.arange(n_earlier + 1)
    covariance = drift**2 * 0.8 ** np.abs(at[:, None] - at)
    covariance += np.diag(between**2 + of_step / np.where(at < n_earlier, RUN_STEPS, MIN_STEPS))
    # Variance of the best linear unbiased prediction of the last run (kriging with unknown mean).
    base, cross = covariance[:-1, :-1], covariance[:-1, -1]
    inverse, ones = np.linalg.inv(base), np.ones(n_earlier)
    mean = (1 - ones @ inverse @ cross) ** 2 / (ones @ inverse @ ones)
    sd = math.sqrt(covariance[-1, -1] - cross @ inverse @ cross + mean)
    normal = statistics.NormalDist()
    return f"{normal.cdf(math.log(1.1) / sd - normal.inv_cdf(1 - BEST_ALPHA)):.1%}"
