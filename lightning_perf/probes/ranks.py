"""What all ranks measured, brought together at the end of an epoch."""

from __future__ import annotations

import math
from typing import Any

from lightning_perf.records import Ranks, StageTimes


def gather_ranks(steady: StageTimes | None, device: Any) -> Ranks | None:
    """Reduces this rank's figures with the other ranks'. A collective: every rank must call it.

    Args:
        steady: This rank's steps; None when it has none, it then takes part without counting.
        device: Where the tensors that are exchanged must lie.

    Returns:
        The same record on every rank; None when no rank has measured anything.
    """
    from torchmetrics import MaxMetric, MeanMetric

    step_s = steady.step_s.mean if steady else math.nan
    wait = steady.phases.get("data_wait") if steady else None
    wait_share = wait.share if wait else (0.0 if steady else math.nan)
    values = []
    for value in (step_s, wait_share):
        for metric in (MeanMetric(nan_strategy="ignore"), MaxMetric(nan_strategy="ignore")):
            metric.to(device).update(value)
            values.append(float(metric.compute()))
    if not math.isfinite(values[1]):
        return None
    return Ranks(
        step_mean_s=values[0],
        step_max_s=values[1],
        data_wait_share_mean=values[2],
        data_wait_share_max=values[3],
    )
