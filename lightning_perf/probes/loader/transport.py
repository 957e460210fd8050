"""What it takes to move a batch from a worker to the main process."""

from __future__ import annotations

import copy
import time
from typing import Any

from torch.utils.data import DataLoader, Dataset

from .pipeline import Pipeline

_PAUSE_S = 0.003
"""The worker waits this long before each batch, so that the main process waits for it and no batch lies in a queue."""
MAX_BATCHES = 60


def time_transport(pipeline: Pipeline, gotten: list[Any], budget_s: float) -> tuple[list[float], float]:
    """Seconds from the end of collating in a worker to the batch in the main process, batch by batch.

    And the seconds that the worker took to start.

    One worker of torch's own replays samples made before: what lies between is pickling, shared memory, the queue, and
    rebuilding the tensors.

    Args:
        pipeline: For collate, and how workers are started.
        gotten: What the dataset gave for one batch.
        budget_s: When to stop, counted from the first batch.
    """
    loader = DataLoader(
        _Replay(gotten),
        batch_size=None,
        num_workers=1,
        prefetch_factor=1,
        collate_fn=_CollateAndStamp(pipeline),
        multiprocessing_context=pipeline.context,
    )
    durations_s: list[float] = []
    asked_s = time.perf_counter()
    batches = iter(loader)
    begin_s = None
    for number, (batch, made_s) in enumerate(batches):
        now_s = time.perf_counter()  # one clock for all processes of a Linux machine
        if begin_s is None:
            begin_s = now_s
        if number > 0:  # the first one starts threads and imports on both sides
            durations_s.append(now_s - made_s)
        del batch
        if now_s - begin_s > budget_s:
            break
    del batches
    return durations_s, (begin_s or asked_s) - asked_s


class _Replay(Dataset[Any]):
    """Gives the same samples again and again, copied: what is in shared memory already would not move again."""

    def __init__(self, gotten: list[Any]) -> None:
        self._gotten = gotten

    def __len__(self) -> int:
        return MAX_BATCHES

    def __getitem__(self, index: int) -> list[Any]:
        gotten = copy.deepcopy(self._gotten)
        time.sleep(_PAUSE_S)
        return gotten


class _CollateAndStamp:
    """Collates as the loader does and says when it was done."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._collate = pipeline.collate
        self._makes_batches = pipeline.makes_batches
        self._is_whole = pipeline.fetch_many is not None

    def __call__(self, gotten: list[Any]) -> tuple[Any, float]:
        batch = self._collate(gotten[0] if self._makes_batches or self._is_whole else gotten)
        return batch, time.perf_counter()
