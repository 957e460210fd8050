"""Choose the length of a trial's runs from the diagnosed baseline."""

import math
from statistics import median
from typing import Literal

from lightning_perf.errors import TrialError
from lightning_perf.records.base import Record
from lightning_perf.stats.blocks import BLOCK_S, BLOCK_STEPS
from lightning_perf.trials.job import Result

TARGET_S = 8.0
"""Seconds of steady training per run: short compared with a start of Lightning, long compared with a block."""

MIN_BLOCKS = 6
"""Fewest blocks per run: two halves of three blocks show whether it is steady."""

MAX_BLOCKS = 40
EPOCHS = 10
"""Epochs of one run if whole epochs are measured: enough for three blocks with validation every third epoch."""

MIN_EPOCHS = 5
MAX_EPOCHS_S = 120.0
"""Time for the epochs of one run; if they take longer, steps are measured instead of whole epochs."""

_WARMUP_SHARE = 0.25  # more blocks than ``TARGET_S`` needs, because an arm may warm up longer than the baseline


class Sizes(Record, frozen=True, kw_only=True):
    """The size of a run.

    Attributes:
        steps: Optimizer steps of the run.
        block_steps: Optimizer steps of a block.
        basis: See ``Trial``.
        expected_s: Duration of a baseline run, its start included.
        memory_limit_bytes: Memory of all processes of a run, without mapped files, beyond which it is killed.
    """

    steps: int
    block_steps: int
    basis: Literal["steps", "wall"]
    expected_s: float
    memory_limit_bytes: int = 0


def choose_sizes(result: Result, wall_s: float, steps: int | None, wants_epochs: bool) -> Sizes:
    """Choose the size of a run.

    Args:
        result: Result of the diagnosed baseline.
        wall_s: Duration of its process.
        steps: Optimizer steps that the user asks for; None to choose them.
        wants_epochs: Whether a treatment acts between epochs, so that whole epochs are measured if there is time.

    Raises:
        TrialError: The user asks for too few steps to measure anything.
    """
    step_s = median(result.block_means_s) if result.block_means_s else result.train_s / max(1, result.n_steps)
    block = min(BLOCK_STEPS, math.ceil(BLOCK_S / step_s))
    epoch_steps = math.ceil(result.epoch_steps or result.n_steps / max(1, result.epochs))
    n_epochs = EPOCHS if steps is None else steps // epoch_steps
    if result.is_whole:
        n_epochs = min(n_epochs, result.epochs)
    epochs_s = n_epochs * epoch_steps * result.train_s / max(1, result.n_steps)
    has_epochs = wants_epochs and result.epochs > 0 and n_epochs >= MIN_EPOCHS and (steps or epochs_s <= MAX_EPOCHS_S)
    least = 2 * block + (result.steady_from or 1)
    if steps is None:
        n_blocks = min(MAX_BLOCKS, max(MIN_BLOCKS, math.ceil(TARGET_S / (block * step_s))))
        chosen = (result.steady_from or 0) + math.ceil(n_blocks * block * (1 + _WARMUP_SHARE))
        chosen += math.ceil(chosen * result.epochs / max(1, result.n_steps))  # first steps of epochs do not count
        if has_epochs:
            chosen = max(chosen, n_epochs * epoch_steps)
    else:
        chosen = steps
        if chosen < least:
            raise TrialError(
                f"--steps {steps}: a block needs {block} steps here, and a run at least two of them after a warm-up of "
                f"{result.steady_from or 1}; give {least} or more"
            )
    if result.is_whole:
        chosen = min(chosen, result.n_steps)
    expected_s = max(0.0, wall_s - result.train_s) + chosen * result.train_s / max(1, result.n_steps)
    return Sizes(steps=chosen, block_steps=block, basis="wall" if has_epochs else "steps", expected_s=expected_s)
