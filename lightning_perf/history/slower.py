"""Find the times of a run that are longer than in earlier runs of the same training."""

import math
from collections.abc import Sequence
from statistics import fmean

from lightning_perf.records import Block, Session
from lightning_perf.stats.comparison import BAND, MIN_EPOCHS, epoch_walls, samples_per_step, whole_blocks
from lightning_perf.stats.next_run import (
    LAST_RUNS,
    MIN_RUNS,
    MIN_RUNS_TO_FIT,
    TimeSeries,
    detectable,
    excess,
    explained,
    threshold,
)

_BLOCKS = 16
"""Fewest parts of a run that its level is based on: most of them must be without rare slow steps."""

_BLOCK_STEPS = 8
"""Steps per part, if a run has enough: few parts have more than the one slow step that is left out."""

_SLOW = 3.0
"""A step is slow if it takes this many times as long as the others, as in ``SlowStep``."""

_LARGEST = math.log(1000)
"""Largest log factor that is reported as detectable."""


def slower_figures(base: Sequence[Session], session: Session, alpha: float) -> dict[str, float]:
    """Return the factors by which a run is slower, by figure as in ``Comparison.times``; only of slower figures.

    ``base`` are earlier runs, oldest first. ``alpha`` is the probability of any figure in the result if nothing
    changed. What a slower machine explains is not included, where runs show how fast it was.
    """
    known = _comparable(base, session)
    found = {}
    for name, (earlier, new) in known.items():
        by = excess(earlier, new)
        if by > max(math.log1p(BAND), threshold(earlier, new, alpha / len(known))):
            found[name] = math.exp(by)
    return found


def like_runs(base: Sequence[Session], session: Session) -> list[Session]:
    """Return the earlier runs to compare a run with: those that timed the machine, if the last and half of all did."""
    *earlier, new = _fixed_s([*base, session])
    timed = [one for one, fixed_s in zip(base, earlier, strict=True) if fixed_s is not None]
    has_enough = None not in (new, *earlier[-LAST_RUNS:]) and len(timed) >= max(MIN_RUNS_TO_FIT, len(base) / 2)
    return timed if has_enough else list(base)


def explained_factor(base: Sequence[Session], session: Session, figure: str) -> float:
    """Return how many times as long the figure is because the machine is slower; 1 if earlier runs do not show it."""
    known = _comparable(base, session)
    return math.exp(explained(*known[figure])) if figure in known else 1.0


def machine_factor(base: Sequence[Session], session: Session) -> float | None:
    """Return how many times as long the fixed piece of Python takes as in the last runs; None if not all timed it."""
    *earlier, new = _fixed_s([*base[-LAST_RUNS:], session])
    known = [math.log(each) for each in earlier if each is not None]
    return math.exp(math.log(new) - fmean(known)) if new and known and len(known) == len(earlier) else None


def detectable_factor(base: Sequence[Session], session: Session, alpha: float) -> float | None:
    """Return the least factor between steps that ``slower_figures`` finds; None if runs cannot be compared."""
    known = _comparable(base, session)
    if "step" not in known:
        return None
    return math.exp(min(_LARGEST, max(math.log1p(BAND), detectable(*known["step"], alpha / len(known)))))


def _comparable(base: Sequence[Session], session: Session) -> dict[str, tuple[list[TimeSeries], TimeSeries]]:
    """Return the earlier runs and the new one, for each figure that enough of them have."""
    sessions = [*base, session]
    units = _units_per_step(sessions)
    known = {}
    for name, all_series in (("step", _steps(sessions)), ("wall", _walls(sessions))):
        runs = [
            one and one._replace(step_s=[step_s / n for step_s in one.step_s], fixed_s=fixed_s)
            for one, n, fixed_s in zip(all_series, units, _fixed_s(sessions), strict=True)
        ]
        new, earlier = runs[-1], [one for one in runs[:-1] if one is not None]
        if new is not None and len(earlier) >= MIN_RUNS:
            known[name] = (earlier, new)
    return known


def _fixed_s(sessions: Sequence[Session]) -> list[float | None]:
    """Return the time of the fixed piece of Python in each run; None in another Python than the last run's."""
    python = sessions[-1].machine.python
    return [one.steady.fixed_python_s if one.steady and one.machine.python == python else None for one in sessions]


def _steps(sessions: Sequence[Session]) -> list[TimeSeries | None]:
    """Return blocks of about equal length, on which the level of skewed steps depends; None for runs without blocks."""
    blocks = [whole_blocks(one.steady) if one.steady is not None else () for one in sessions]
    known = [each for each in blocks if each]
    size = min(
        max([_BLOCK_STEPS, *(each[0].n_steps for each in known)]),
        min((sum(block.n_steps for block in each) // _BLOCKS for each in known), default=1),
    )
    return [_merged(each, size) for each in blocks]


def _merged(blocks: Sequence[Block], block_steps: int) -> TimeSeries | None:
    """Return means of at least ``block_steps`` steps, each without its slowest step if that is slow; None without any.

    One step in a hundred that takes five times as long would add more to the variance than all others.
    """
    if not blocks or min(block.step_s for block in blocks) <= 0:
        return None
    n = max(1, -(-block_steps // blocks[0].n_steps))
    steps = n * blocks[0].n_steps
    groups = [blocks[i : i + n] for i in range(0, len(blocks) - n + 1, n)]
    return TimeSeries([_typical_step_s(group, steps) for group in groups], steps)


def _typical_step_s(group: Sequence[Block], steps: int) -> float:
    whole_s = steps / len(group) * sum(block.step_s for block in group)
    slowest_s = max(block.max_step_s for block in group)
    others_s = (whole_s - slowest_s) / max(1, steps - 1)
    # Times are rounded, so the difference to a very long step may be 0.
    return others_s if 0 < others_s < slowest_s / _SLOW else whole_s / steps


def _walls(sessions: Sequence[Session]) -> list[TimeSeries | None]:
    walls = [epoch_walls(one) for one in sessions]
    return [TimeSeries(each, 1.0) if len(each) >= MIN_EPOCHS else None for each in walls]


def _units_per_step(sessions: Sequence[Session]) -> list[int]:
    """Return samples per step if batch sizes differ, in order to compare times per sample; otherwise ones."""
    sizes = [samples_per_step(one) for one in sessions]
    is_changed = None not in sizes and len(set(sizes)) > 1
    return [size if size and is_changed else 1 for size in sizes]
