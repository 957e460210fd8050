"""Whether one more run is slower than earlier runs of the same training.

The noise between runs is the error of predicting each earlier run by the mean of those before it (recursive residuals;
Brown, Durbin and Evans, J. R. Stat. Soc. B 37, 1975). So a slow drift of the machine counts as noise, and with few
earlier runs only a larger difference counts (Student's t). A new run is shorter than earlier ones; parts of these as
long as the new run show how much more its level varies. Degrees of freedom of the sum of both variances are
Satterthwaite's (Biometrics Bulletin 2, 1946).

A machine that others use, too, becomes slower and faster by more than most changes to a training. Where each run has
timed the same piece of Python, what a regression on that time explains is removed first (a control variate, or
analysis of covariance).

The spread of other trainings is not used (Smyth, Stat. Appl. Genet. Mol. Biol. 3, 2004): a training that differs more
from run to run than others do would be called slower too often.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from .steady import MAD_TO_SIGMA

LAST_RUNS = 5
"""Runs whose mean level the next run is compared with. More would follow a drift less well."""

MIN_RUNS = 3
"""Earlier runs that a comparison needs."""

ALPHA = 0.0075
"""Probability of calling a run slower that is not, over all times that it is compared. Levels are not quite normal and
Satterthwaite's degrees of freedom an approximation, so this is less than the 1 % that are promised."""

POWER = 0.95
"""Probability of finding a regression of the size that ``detectable`` returns."""

_FIRST_COMPARISON = 0.9
"""Part of ``ALPHA`` for the first comparison. The noise between runs is the same in later ones, so they find little
that the first does not."""

_TRIM = 0.25
"""Left out on both sides. If parts differ normally, the mean of the middle half is as precise as the mean of 84 % of
them, the median as that of 64 %."""

_MIN_PARTS = 4
"""Parts of a time series that one level needs."""

_CLIP = 3 * MAD_TO_SIGMA
"""Times the median absolute residual: 3 standard deviations. One earlier run that was disturbed, or an earlier change
of the level, then hides little."""

_MIN_TO_CLIP = 8  # residuals; the median of fewer may be far too low

MIN_RUNS_TO_FIT = 5
"""Earlier runs that show how much a slower machine slows the training down. The fit costs a degree of freedom."""

_MAX_SLOPE = 2.0

PARTS_OF_ALPHA = {2: 1 / 3, 3: 2 / 3}
"""By degrees of freedom between runs. With few, Satterthwaite's t is exceeded too often: with two, more than twice as
often as it should be, even if levels are normal."""


def alpha_of(n: int) -> float:
    """Return the part of ``ALPHA`` for the n-th comparison of a run, from 0 on."""
    return float(ALPHA * _FIRST_COMPARISON * (1 - _FIRST_COMPARISON) ** n)


class TimeSeries(NamedTuple):
    """One run: seconds per step of successive parts (positive, at least one), each of as many steps or epochs.

    ``fixed_s`` are the seconds of a fixed piece of work, which show how fast the machine was; None if unknown.
    """

    step_s: Sequence[float]
    part_length: float
    fixed_s: float | None = None


class Levels(NamedTuple):
    """Log levels of earlier runs, along the first axis, and of a new one, without what the machine's speed explains.

    ``leverage`` is how uncertain that is for the new run, as a part of the variance of one run; ``n_fitted`` the number
    of fitted parameters.
    """

    earlier: NDArray[np.float64]
    new: Any
    leverage: Any = 0.0
    n_fitted: int = 0

    @property
    def factor(self) -> Any:
        """Variance of the new level's excess over the last runs, as a multiple of that of one run."""
        return 1 + 1 / min(LAST_RUNS, len(self.earlier)) + self.leverage


def excess(earlier: Sequence[TimeSeries], new: TimeSeries) -> float:
    """Return by how much the log level of a run exceeds the mean of the last ``LAST_RUNS`` before it.

    What is explained by the machine's speed is not included.
    """
    levels = _levels(earlier, new)
    return float(levels.new - levels.earlier[-LAST_RUNS:].mean())


def threshold(earlier: Sequence[TimeSeries], new: TimeSeries, alpha: float) -> float:
    """Return the threshold that ``excess`` exceeds with probability ``alpha`` (one-sided) if nothing changed.

    There are at least ``MIN_RUNS`` earlier runs, oldest first.
    """
    deviation, df, part_of_alpha = _prediction(earlier, new)
    return float(stdtrit(df, 1 - alpha * part_of_alpha)) * deviation


def detectable(earlier: Sequence[TimeSeries], new: TimeSeries, alpha: float) -> float:
    """Return the least increase of the log level that exceeds ``threshold`` with probability ``POWER``."""
    deviation, df, part_of_alpha = _prediction(earlier, new)
    return float(stdtrit(df, 1 - alpha * part_of_alpha) + stdtrit(df, POWER)) * deviation


def _prediction(earlier: Sequence[TimeSeries], new: TimeSeries) -> tuple[float, float, float]:
    """Return the standard deviation of ``excess``, its degrees of freedom, and the part of alpha to use with them."""
    levels = _levels(earlier, new)
    errors = residuals(levels.earlier)
    n = len(errors) - levels.n_fitted
    between = float((errors**2).sum()) / n * float(levels.factor)
    within, df = _within(earlier, len(new.step_s) * new.part_length)
    variance = between + within
    if variance == 0:
        return 0.0, n, 1.0
    whole_df = 1 / ((between / variance) ** 2 / n + (within / variance) ** 2 / max(1, df))
    return math.sqrt(variance), whole_df, PARTS_OF_ALPHA.get(n, 1.0) if df else 1.0


def _levels(earlier: Sequence[TimeSeries], new: TimeSeries) -> Levels:
    levels = Levels(np.array([_level(_logs(one)) for one in earlier]), _level(_logs(new)))
    known_s = [one.fixed_s for one in (*earlier, new) if one.fixed_s is not None]
    if len(earlier) < MIN_RUNS_TO_FIT or len(known_s) <= len(earlier):
        return levels
    speeds = np.log(known_s)
    return without_speed(levels, speeds[:-1], speeds[-1])


def without_speed(levels: Levels, earlier: NDArray[np.float64], new: Any) -> Levels:
    """Return levels without their regression on the log times of the fixed piece of work.

    A slope below 0 counts as 0: no training becomes faster with a slower machine. One above ``_MAX_SLOPE`` is chance:
    where the speed hardly varied, it says nothing about a machine that has become much slower.
    """
    centered = earlier - earlier.mean(axis=0)
    squares = np.maximum((centered**2).sum(axis=0), np.finfo(float).tiny)
    slope = np.clip((centered * levels.earlier).sum(axis=0) / squares, 0.0, _MAX_SLOPE)
    leverage = np.where(slope > 0, (new - earlier[-LAST_RUNS:].mean(axis=0)) ** 2 / squares, 0.0)
    return Levels(levels.earlier - slope * earlier, levels.new - slope * new, leverage, n_fitted=1)


def _within(earlier: Sequence[TimeSeries], length: float) -> tuple[float, int]:
    """Return how much larger the variance of the level is in a run of this length, and its degrees of freedom."""
    square, df, own = 0.0, 0, []
    for one in earlier:
        whole = len(one.step_s) * one.part_length
        n = min(max(2, int(whole / length)), len(one.step_s) // _MIN_PARTS)
        if n >= 2 and whole > length:
            logs = _logs(one)
            size = len(logs) // n
            levels = [_level(logs[i * size : (i + 1) * size]) for i in range(n)]
            square += float(np.var(levels)) * n * (whole / n / length)
            df += n - 1
            own.append(length / whole)
    # The differences between earlier runs already contain their own share of it.
    return (square / df * (1 - float(np.mean(own))), df) if df else (0.0, 0)


def _logs(one: TimeSeries) -> NDArray[np.float64]:
    return np.log(np.asarray(one.step_s, dtype=np.float64))


def _level(logs: NDArray[np.float64]) -> float:
    """Return the mean of the middle half: other programs may slow some parts."""
    return float(midmean(logs))


def midmean(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean of the middle half of the last axis."""
    n = logs.shape[-1]
    cut = round(_TRIM * n)
    return np.asarray(np.sort(logs)[..., cut : n - cut].mean(axis=-1))


def residuals(logs: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the errors of predicting each run by the mean of up to ``LAST_RUNS`` before it.

    They are scaled to the variance of one run. Runs are the first axis.
    """
    found = []
    for i in range(1, len(logs)):
        before = logs[max(0, i - LAST_RUNS) : i]
        found.append((logs[i] - sum(before) / len(before)) / math.sqrt(1 + 1 / len(before)))
    errors = np.array(found)
    if len(errors) >= _MIN_TO_CLIP:
        limit = _CLIP * np.median(np.abs(errors), axis=0)
        errors = np.where(limit > 0, np.clip(errors, -limit, limit), errors)
    return errors
