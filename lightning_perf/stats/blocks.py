"""Steps of one run as means of blocks: neighboring steps are correlated, blocks hardly are."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .steady import halves_agree, warmup_length

BLOCK_STEPS = 20
"""Fewest steps of a block."""

BLOCK_S = 1.0
"""A block may have fewer than ``BLOCK_STEPS`` steps if they take this long together."""

MIN_BLOCKS = 2
"""Blocks that a comparison of the run's halves needs."""


class Blocks(NamedTuple):
    """The steady part of a run.

    Attributes:
        steady_from: Index of the first steady step; None if the run never became steady.
        block_steps: Steps per block; 0 without blocks.
        means_s: Mean seconds per step of each block; empty if the run never became steady.
        reason: Why there are no blocks.
    """

    steady_from: int | None
    block_steps: int
    means_s: tuple[float, ...]
    reason: str


def steady_blocks(step_s: Sequence[float]) -> Blocks:
    """Divide the steady part of a run into blocks of at least ``BLOCK_STEPS`` steps or ``BLOCK_S`` seconds.

    ``step_s`` excludes first steps of epochs, compilations and validations. The warm-up is left out
    (``warmup_length``), the halves of the rest must agree (``halves_agree``), and steps at the end that do not fill a
    block are dropped.
    """
    steps = np.asarray(step_s, dtype=np.float64)
    start = warmup_length((steps * 1e9).astype(np.int64))
    rest = steps[start:]
    if len(rest) == 0:
        return Blocks(None, 0, (), "no step was measured")
    typical = float(np.median(rest))
    block_steps = min(BLOCK_STEPS, max(1, math.ceil(BLOCK_S / typical))) if typical > 0 else BLOCK_STEPS
    n_blocks = len(rest) // block_steps
    if n_blocks < MIN_BLOCKS:
        return Blocks(
            None, 0, (),
            f"{len(rest)} steps after the warm-up of {start}; {MIN_BLOCKS * block_steps} are needed for "
            f"{MIN_BLOCKS} blocks",
        )  # fmt: skip
    means = rest[: n_blocks * block_steps].reshape(n_blocks, block_steps).mean(axis=1)
    if not halves_agree(means):
        return Blocks(None, 0, (), "the steady state was not reached: the halves of the run differ")
    return Blocks(start, block_steps, tuple(float(mean) for mean in means), "")
