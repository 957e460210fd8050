"""Steps of one run as means of blocks: neighbouring steps resemble each other, blocks hardly do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .steady import halves_agree, warmup_length

BLOCK_STEPS = 20
"""Least steps of a block."""

BLOCK_S = 1.0
"""A block may hold fewer than ``BLOCK_STEPS`` steps where they take this long together."""

MIN_BLOCKS = 2
"""Halves of the run must be told apart."""


class Blocks(NamedTuple):
    """The steady part of a run.

    Attributes:
        steady_from: Index of the first steady step; None where the run never became steady.
        block_steps: Steps a block; 0 without blocks.
        means_s: Mean seconds a step, by block in order; empty where the run never became steady.
        reason: Why there are none; empty otherwise.
    """

    steady_from: int | None
    block_steps: int
    means_s: tuple[float, ...]
    reason: str


def steady_blocks(step_s: Sequence[float]) -> Blocks:
    """Cuts the steady part of a run into blocks of at least ``BLOCK_STEPS`` steps or ``BLOCK_S`` seconds.

    The warm-up is left out (``warmup_length``); then the halves of the rest must agree (``halves_agree``). What does
    not fill a block at the end is left out.

    Args:
        step_s: Seconds of each optimizer step in order. Steps that are not like the others by their nature (the first
            of an epoch, those with a compilation or a validation in them) must not be among them.

    Returns:
        The blocks, or why there are none.
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
