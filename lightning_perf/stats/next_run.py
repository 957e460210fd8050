"""Whether one more run is slower than earlier runs of the same training.

The noise between runs is the error of predicting each earlier run by the mean of those before it (recursive residuals;
Brown, Durbin and Evans, J. R. Stat. Soc. B 37, 1975). So a slow drift of the machine counts as noise, and with few
earlier runs only a larger difference counts (Student's t). A new run is shorter than earlier ones; parts of these as
long as the new run show how much more its level varies. Degrees of freedom of the sum of both variances are
Satterthwaite's (Biometrics Bulletin 2, 1946).

The spread of other trainings is not used (Smyth, Stat. Appl. Genet. Mol. Biol. 3, 2004): a training that differs more
from run to run than others do would be called slower too often.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

LAST_RUNS = 5
"""Runs whose mean level the next run is compared with. More would follow a drift less well."""

MIN_RUNS = 3

ALPHA = 0.004
"""Probability of calling a run slower that is not, over all times that it is compared. Levels are not quite normal:
simulations have up to 1 % (docs/benchmarks/history.md)."""

_FIRST_LOOK = 0.9
"""Part of ``ALPHA`` for the first comparison. The noise between runs is the same in later ones, so they find little
that the first does not."""

_TRIM = 0.35

_MIN_PARTS = 4
"""Parts of a course that one level needs."""

_CLIP = 3 * 1.4826
"""Times the median absolute residual: 3 standard deviations. One earlier run that was disturbed, or an earlier change
of the level, then hides little."""

_MIN_TO_CLIP = 8  # residuals; the median of fewer may be far too low

_PARTS_OF_ALPHA = {2: 1 / 3, 3: 2 / 3}
"""By degrees of freedom between runs. Satterthwaite's t is exceeded too often with few: more than twice as often as it
should be with two, if levels are normal."""


def alpha_of(look: int) -> float:
    """Return the part of ``ALPHA`` for the n-th comparison of a run, from 0 on."""
    return float(ALPHA * _FIRST_LOOK * (1 - _FIRST_LOOK) ** look)


class Course(NamedTuple):
    """One run: seconds per step of successive parts (positive, at least one), each of as many steps or epochs."""

    step_s: Sequence[float]
    part_length: float


def excess(earlier: Sequence[Course], new: Course) -> float:
    """Return by how much the log level of a run exceeds the mean of the last ``LAST_RUNS`` before it."""
    return _level(_logs(new)) - float(np.mean([_level(_logs(one)) for one in earlier[-LAST_RUNS:]]))


def reach(earlier: Sequence[Course], new: Course, alpha: float) -> float:
    """Return the threshold that ``excess`` exceeds with probability ``alpha`` (one-sided) if nothing changed.

    There are at least ``MIN_RUNS`` earlier runs, oldest first.
    """
    residuals = _residuals([_level(_logs(one)) for one in earlier])
    between = float((residuals**2).mean()) * (1 + 1 / min(LAST_RUNS, len(earlier)))
    within, df = _within(earlier, len(new.step_s) * new.part_length)
    variance, n = between + within, len(residuals)
    if variance == 0:
        return 0.0
    if df:
        alpha *= _PARTS_OF_ALPHA.get(n, 1.0)
    whole_df = 1 / ((between / variance) ** 2 / n + (within / variance) ** 2 / max(1, df))
    return float(stdtrit(whole_df, 1 - alpha)) * math.sqrt(variance)


def _within(earlier: Sequence[Course], length: float) -> tuple[float, int]:
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


def _logs(one: Course) -> NDArray[np.float64]:
    return np.log(np.asarray(one.step_s, dtype=np.float64))


def _level(logs: NDArray[np.float64]) -> float:
    """Return the mean of the middle 30 %: rare slow steps do not count."""
    cut = int(_TRIM * len(logs))
    return float(np.sort(logs)[cut : len(logs) - cut].mean())


def _residuals(logs: Sequence[float]) -> NDArray[np.float64]:
    """Return the errors of predicting each run by the mean of up to ``LAST_RUNS`` before, scaled to one run's."""
    found = []
    for i in range(1, len(logs)):
        before = logs[max(0, i - LAST_RUNS) : i]
        found.append((logs[i] - sum(before) / len(before)) / math.sqrt(1 + 1 / len(before)))
    residuals = np.array(found)
    if len(residuals) >= _MIN_TO_CLIP:
        limit = _CLIP * float(np.median(np.abs(residuals)))
        residuals = np.clip(residuals, -limit, limit) if limit else residuals
    return residuals
