"""Whether one more run is slower than earlier runs of the same training.

The noise between runs is the error of predicting each earlier run by the mean of those before it (recursive residuals;
Brown, Durbin and Evans, J. R. Stat. Soc. B 37, 1975). So a slow drift of the machine counts as noise, and with few
earlier runs only a larger difference counts (Student's t). A new run is often shorter than earlier ones. So these are
divided into parts as long as the new run: the spread of the parts shows how much more the level of a short run varies,
and the first parts show how much slower runs start. The variances between and within runs are added. The quantile of
their sum is the mean of the two Student quantiles, weighted by the variances (Cochran and Cox, Experimental Designs,
1957): Satterthwaite's quantile is exceeded too often if there are few earlier runs.

A machine that others use, too, becomes slower and faster by more than most changes to a training. Where each run has
timed the same piece of work, and earlier runs were slower when it was, what a regression on that time explains is
removed first (a control variate; analysis of covariance).

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
"""Probability of calling a run slower that is not, over all times that it is compared. It is less than the 1 % that are
promised because the machine may drift, and because its speed is removed only where that seems to help."""

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

_LEAST_SQUARES = 1e-12  # of speeds that are equal but for rounding
_LEAST_VARIANCE = 1e-18

_STANDARD_ERRORS = 2.0
"""A slope that exceeds 0 by less is taken for chance: removing it would cost more than it gains."""

_MAX_SLOPE = 2.0
"""Log time of the training per log time of the fixed piece. A steeper slope is chance, from speeds that hardly vary."""


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

    Attributes:
        removed: How much of the new level's excess over the last runs the machine's speed explains.
        leverage: How uncertain that is, as a part of the variance of one run.
        n_fitted: Number of fitted parameters.
    """

    earlier: NDArray[np.float64]
    new: Any
    removed: Any = 0.0
    leverage: Any = 0.0
    n_fitted: Any = 0

    @property
    def excess(self) -> Any:
        """By how much the new level exceeds the mean of the last ones."""
        return self.new - self.earlier[-LAST_RUNS:].mean(axis=0)

    @property
    def variance_factor(self) -> Any:
        """Variance of the excess, as a multiple of that of one run."""
        return 1 + 1 / min(LAST_RUNS, len(self.earlier)) + self.leverage


def excess(earlier: Sequence[TimeSeries], new: TimeSeries) -> float:
    """Return by how much the log level of a run exceeds the mean of the last ``LAST_RUNS`` before it.

    What is explained by the machine's speed is not included.
    """
    return float(_levels(earlier, new).excess)


def explained(earlier: Sequence[TimeSeries], new: TimeSeries) -> float:
    """Return by how much the machine's speed raises the log level of a run; 0 if earlier runs do not show it."""
    return float(_levels(earlier, new).removed)


def threshold(earlier: Sequence[TimeSeries], new: TimeSeries, alpha: float) -> float:
    """Return the threshold that ``excess`` exceeds with probability ``alpha`` (one-sided) if nothing changed.

    There are at least ``MIN_RUNS`` earlier runs, oldest first.
    """
    return float(_prediction(earlier, new).quantile(1 - alpha))


def detectable(earlier: Sequence[TimeSeries], new: TimeSeries, alpha: float) -> float:
    """Return the least increase of the log level that exceeds ``threshold`` with probability ``POWER``."""
    predicted = _prediction(earlier, new)
    return float(predicted.quantile(1 - alpha) + predicted.quantile(POWER))


class Prediction(NamedTuple):
    """Variances of ``excess`` if nothing changed, with their degrees of freedom; arrays for many sequences of runs."""

    between: Any
    df_between: Any
    within: Any
    df_within: Any

    def quantile(self, probability: float) -> Any:
        """Return the quantile of ``excess`` for a probability of more than one half."""
        variance = self.between + self.within
        weighted = self.between * stdtrit(self.df_between, probability)
        weighted += self.within * stdtrit(np.maximum(1, self.df_within), probability)
        return weighted / np.sqrt(np.maximum(variance, _LEAST_VARIANCE))


def predicted_excess(levels: Levels, within: Any, df_within: Any) -> Prediction:
    """Return the variances of the excess; ``within`` is how much larger the variance of a short run's level is."""
    errors = residuals(levels.earlier)
    df = len(errors) - levels.n_fitted
    # The mean difference between starts of earlier runs and these runs is subtracted from the new level.
    of_start = within * (1 + 1 / len(levels.earlier))
    return Prediction((errors**2).sum(axis=0) / df * levels.variance_factor, df, of_start, df_within)


def _prediction(earlier: Sequence[TimeSeries], new: TimeSeries) -> Prediction:
    return predicted_excess(_levels(earlier, new), *_within(earlier, _length(new)))


def _levels(earlier: Sequence[TimeSeries], new: TimeSeries) -> Levels:
    starts = [_start_excess(one, _length(new)) for one in earlier]
    levels = Levels(np.array([_level(_logs(one)) for one in earlier]), _level(_logs(new)) - sum(starts) / len(starts))
    known_s = [one.fixed_s for one in (*earlier, new) if one.fixed_s is not None]
    if len(known_s) <= len(earlier):
        return levels
    speeds = np.log(known_s)
    return remove_machine_speed(levels, speeds[:-1], speeds[-1])


def remove_machine_speed(levels: Levels, earlier: NDArray[np.float64], new: Any) -> Levels:
    """Return levels without their regression on the log times of the fixed piece of work.

    Levels stay as they are if there are too few earlier runs, or if these were no slower where the piece was.
    """
    n = len(earlier)
    if n < MIN_RUNS_TO_FIT:
        return levels
    mean, last = earlier.mean(axis=0), earlier[-LAST_RUNS:].mean(axis=0)
    centered, heights = earlier - mean, levels.earlier - levels.earlier.mean(axis=0)
    squares = np.maximum((centered**2).sum(axis=0), _LEAST_SQUARES)
    slope = (centered * heights).sum(axis=0) / squares
    unexplained = np.maximum(0.0, (heights**2).sum(axis=0) - slope**2 * squares)
    is_related = slope > _STANDARD_ERRORS * np.sqrt(unexplained / (n - 2) / squares)
    slope = np.where(is_related, np.minimum(slope, _MAX_SLOPE), 0.0)
    # Slope and mean of the last runs have errors in common.
    leverage = np.where(is_related, np.maximum(0.0, (new - mean) ** 2 - (last - mean) ** 2) / squares, 0.0)
    return Levels(
        levels.earlier - slope * earlier, levels.new - slope * new, slope * (new - last), leverage, 1 * is_related
    )


def _start_excess(one: TimeSeries, length: float) -> float:
    """Return by how much the log level of a run's start exceeds that of the whole run."""
    logs = _logs(one)
    return _level(logs[: max(1, math.ceil(length / one.part_length))]) - _level(logs)


def _length(one: TimeSeries) -> float:
    return len(one.step_s) * one.part_length


def _within(earlier: Sequence[TimeSeries], length: float) -> tuple[float, int]:
    """Return how much larger the variance of the level is in a run of this length, and its degrees of freedom."""
    square, df, own = 0.0, 0, []
    for one in earlier:
        whole = _length(one)
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
