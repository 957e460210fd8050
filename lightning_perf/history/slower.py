"""Which times of a run are longer than in earlier runs of the same training."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lightning_perf.records import Session
from lightning_perf.stats.comparison import BAND, samples_per_step, step_level, wall_level
from lightning_perf.stats.next_run import MIN_RUNS, OneRun, excess, reach
from lightning_perf.stats.single_runs import Level

_BLOCKS = 16
"""Parts of a run that its level is made of at least: rare slow steps must not be in most of them."""


def slower_figures(base: Sequence[Session], session: Session, alpha: float) -> dict[str, float]:
    """Return by which factor a run is slower; by figure, as in ``Comparison.times``, and only those that are slower.

    Args:
        base: Earlier runs, oldest first.
        session: The run.
        alpha: Probability that a figure is in the result although nothing changed.
    """
    sessions = [*base, session]
    scales = _scales(sessions)
    known = {}
    for name, levels in (("step", _step_levels(sessions)), ("wall", _wall_levels(sessions))):
        runs = [
            None if isinstance(level, str) else OneRun(level.log - scale, level.variance, length)
            for (level, length), scale in zip(levels, scales, strict=True)
        ]
        *_, new = runs
        earlier = [one for one in runs[:-1] if one is not None]
        if new is not None and len(earlier) >= MIN_RUNS:
            known[name] = (earlier, new)
    found = {}
    for name, (earlier, new) in known.items():
        by = excess(earlier, new)
        if by > max(math.log1p(BAND), reach(earlier, new, alpha / len(known))):
            found[name] = math.exp(by)
    return found


def _step_levels(sessions: Sequence[Session]) -> list[tuple[Level | str, float]]:
    """Return levels from blocks of equal length as far as possible: the median of a block depends on its length."""
    steady = [one.steady for one in sessions if one.steady is not None and one.steady.timeline]
    size = min(
        max((each.timeline[0].n_steps for each in steady), default=1),
        min((each.n_steps // _BLOCKS for each in steady), default=1),
    )
    return [
        ("", 0.0) if one.steady is None else (step_level(one.steady, one, size), one.steady.n_steps) for one in sessions
    ]


def _wall_levels(sessions: Sequence[Session]) -> list[tuple[Level | str, float]]:
    """Return levels of runs with enough whole epochs, and the numbers of these."""
    found = [wall_level(one.steady, one) if one.steady is not None else "" for one in sessions]
    return [("", 0.0) if isinstance(one, str) or one.variance is None else (one, one.n) for one in found]


def _scales(sessions: Sequence[Session]) -> list[float]:
    """Return log samples per step if the batch size was changed: then times per sample are compared; else zeros."""
    sizes = [samples_per_step(one) for one in sessions]
    is_changed = None not in sizes and len(set(sizes)) > 1
    return [math.log(size) if size and is_changed else 0.0 for size in sizes]
