"""Simulate sessions of trainings with the same step aggregation as real ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from lightning_perf.probes.timeline.spans import N_PHASES, PHASE_INDEX
from lightning_perf.probes.timeline.step_aggregator import (
    FIRST_STEP,
    KIND,
    NOT_A_STEP,
    RECORD_WIDTH,
    SAMPLES,
    USUAL_STEP,
    StepAggregator,
)
from lightning_perf.records import Epoch, Machine, Run, Session

STEP_S = 0.05
PARTS = {"data_wait": 0.1, "forward": 0.3, "backward": 0.5, "optimizer": 0.1}
VALIDATION_S = 1.0


def correlated(n: int, phi: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return an AR(1) series with standard deviation 1, shape (n,)."""
    shocks = rng.standard_normal(n) * math.sqrt(1 - phi**2)
    series, _ = lfilter([1.0], [1.0, -phi], shocks, zi=[phi * rng.standard_normal()])
    return np.asarray(series)


def simulated(
    seed: int,
    *,
    slower: float = 1.0,
    phase: str = "",
    n_epochs: int = 5,
    steps_an_epoch: int = 200,
    phi: float = 0.6,
    within: float = 0.1,
    between: float = 0.01,
    heavy: float = 0.01,
    validation_s: float = VALIDATION_S,
    more_s: Mapping[str, float] = MappingProxyType({}),
    **fields: Any,
) -> Session:
    """Return the session of one simulated run.

    Args:
        seed: Random seed; also the run's id.
        slower: Factor on the time of a step, or of one phase.
        phase: That phase; empty for the whole step.
        phi: Correlation of consecutive steps.
        within: Relative standard deviation of steps.
        between: Relative standard deviation of runs.
        heavy: Share of steps that take five times as long.
        validation_s: Seconds of validation after each epoch.
        more_s: Seconds per step that are added to phases.
        fields: Session fields that replace the defaults.
    """
    rng = np.random.default_rng(seed)
    level = math.exp(between * rng.standard_normal())
    aggregator, epochs = StepAggregator(), []
    for epoch in range(n_epochs):
        rows = np.zeros((steps_an_epoch + 1, RECORD_WIDTH), dtype=np.int64)
        steps = STEP_S * level * np.exp(within * correlated(steps_an_epoch, phi, rng))
        steps[rng.random(steps_an_epoch) < heavy] *= 5
        for name, part in PARTS.items():
            factor = slower if phase in ("", name) else 1.0
            rows[:-1, PHASE_INDEX[name]] = 1e9 * factor * part * steps
        for name, seconds in more_s.items():
            rows[:-1, PHASE_INDEX[name]] += (1e9 * seconds * steps / STEP_S).astype(np.int64)
        rows[-1, PHASE_INDEX["validation"]] = 1e9 * validation_s * level
        rows[:-1, KIND], rows[0, KIND], rows[-1, KIND] = USUAL_STEP, FIRST_STEP, NOT_A_STEP
        rows[:, SAMPLES] = 32
        aggregator.add(rows)
        epochs.append(Epoch(index=epoch, n_steps=steps_an_epoch, wall_s=int(rows[:, :N_PHASES].sum()) / 1e9, phases={}))
    steady = aggregator.stage_times(n_warmup_steps=0)
    session = Session(
        run=Run(
            id=str(fields.pop("id", seed)),
            stage="fit",
            status="finished",
            started_at="2026-01-01T00:00:00Z",
            wall_s=60.0,
            n_steps=n_epochs * steps_an_epoch,
            n_epochs=n_epochs,
        ),
        machine=Machine(os="Linux", python="3.11", cpu_model="made up", usable_cores=8.0),
        steady=steady,
        epochs=tuple(epochs),
    )
    return msgspec.structs.replace(session, **fields)
