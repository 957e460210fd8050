"""Steps of a block, from the rows of a stage."""

from __future__ import annotations

import numpy as np
import pytest

from lightning_perf.probes.timeline.spans import N_PHASES, PHASE_INDEX
from lightning_perf.probes.timeline.step_aggregator import (
    FIRST_STEP,
    KIND,
    LEFT_OUT_STEP,
    LEFT_OUT_TIME,
    NOT_A_STEP,
    RECORD_WIDTH,
    USUAL_STEP,
    time_with_boundaries_s,
    usual_steps_s,
)


def rows(*told: tuple[int, str, float]) -> np.ndarray:
    """Return rows with the kind, and the seconds of one phase."""
    found = np.zeros((len(told), RECORD_WIDTH), dtype=np.int64)
    for row, (kind, phase, seconds) in zip(found, told, strict=True):
        row[PHASE_INDEX[phase]], row[KIND] = int(seconds * 1e9), kind
    assert N_PHASES < RECORD_WIDTH
    return found


BLOCK = rows(
    (USUAL_STEP, "forward", 50.0), (NOT_A_STEP, "epoch_boundary", 7.0), (FIRST_STEP, "forward", 5.0),
    (USUAL_STEP, "forward", 1.0), (LEFT_OUT_STEP, "forward", 90.0), (LEFT_OUT_TIME, "other", 80.0),
    (USUAL_STEP, "backward", 2.0), (NOT_A_STEP, "validation", 30.0),
)  # fmt: skip


def test_usual_steps_are_read_after_those_left_out() -> None:
    assert usual_steps_s(BLOCK, 1) == pytest.approx({1: 1.0, 3: 2.0})
    assert usual_steps_s(BLOCK, 3) == pytest.approx({1: 2.0})
    assert usual_steps_s(BLOCK, 5) == {}


def test_time_of_an_epoch_has_its_boundary_and_neither_validation_nor_what_is_left_out() -> None:
    seconds, n_steps = time_with_boundaries_s(BLOCK)
    assert seconds == pytest.approx(50 + 7 + 5 + 1 + 2)
    assert n_steps == 4
