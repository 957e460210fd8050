"""Which times of a run are longer than in earlier runs of the same training."""

import math
from collections.abc import Sequence

from lightning_perf.records import Block, Session
from lightning_perf.stats.comparison import BAND, MIN_EPOCHS, epoch_walls, samples_per_step, whole_blocks
from lightning_perf.stats.next_run import MIN_RUNS, Course, excess, reach

_BLOCKS = 16
"""Fewest parts of a run that its level is based on: rare slow steps must not be in most of them."""


def slower_figures(base: Sequence[Session], session: Session, alpha: float) -> dict[str, float]:
    """Return the figures, named as in ``Comparison.times``, in which a run is slower, and by which factor.

    ``base`` are earlier runs, oldest first; ``alpha`` is the probability of a figure in the result although nothing
    changed.
    """
    sessions = [*base, session]
    units = _units_per_step(sessions)
    known = {}
    for name, courses in (("step", _steps(sessions)), ("wall", _walls(sessions))):
        runs = [
            one and one._replace(step_s=[step_s / n for step_s in one.step_s])
            for one, n in zip(courses, units, strict=True)
        ]
        new, earlier = runs[-1], [one for one in runs[:-1] if one is not None]
        if new is not None and len(earlier) >= MIN_RUNS:
            known[name] = (earlier, new)
    found = {}
    for name, (earlier, new) in known.items():
        by = excess(earlier, new)
        if by > max(math.log1p(BAND), reach(earlier, new, alpha / len(known))):
            found[name] = math.exp(by)
    return found


def _steps(sessions: Sequence[Session]) -> list[Course | None]:
    """Return blocks of equal length as far as possible: their median depends on it if steps are skewed."""
    blocks = [whole_blocks(one.steady) if one.steady is not None else () for one in sessions]
    known = [each for each in blocks if each]
    size = min(
        max((each[0].n_steps for each in known), default=1),
        min((sum(block.n_steps for block in each) // _BLOCKS for each in known), default=1),
    )
    return [_merged(each, size) for each in blocks]


def _merged(blocks: Sequence[Block], block_steps: int) -> Course | None:
    """Return means of at least ``block_steps`` steps; None without blocks."""
    if not blocks or min(block.step_s for block in blocks) <= 0:
        return None
    n = max(1, -(-block_steps // blocks[0].n_steps))
    groups = [blocks[i : i + n] for i in range(0, len(blocks) - n + 1, n)]
    return Course([sum(block.step_s for block in group) / n for group in groups], n * blocks[0].n_steps)


def _walls(sessions: Sequence[Session]) -> list[Course | None]:
    walls = [epoch_walls(one) for one in sessions]
    return [Course(each, 1.0) if len(each) >= MIN_EPOCHS else None for each in walls]


def _units_per_step(sessions: Sequence[Session]) -> list[int]:
    """Return samples per step if the batch size was changed: then times per sample are compared; else ones."""
    sizes = [samples_per_step(one) for one in sessions]
    is_changed = None not in sizes and len(set(sizes)) > 1
    return [size if size and is_changed else 1 for size in sizes]
