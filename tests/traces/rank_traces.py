"""Synthetic traces of several ranks that exchange gradients."""

import gzip
import random
from pathlib import Path
from typing import Any

from .events import document, event, launched, requested

N_STEPS = 3
STEP_US = 10_000.0
TRANSFER_US = 500.0
N_BYTES = 4 << 20


def collective(number: int, launch_us: float, begin_us: float, end_us: float, **more: Any) -> list[dict[str, Any]]:
    sizes = {"In msg nelems": N_BYTES // 4, "dtype": "Float", "Collective name": "allreduce", **more}
    kernel = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"
    return requested("nccl:all_reduce", launch_us, (begin_us, end_us - begin_us), number, kernel, **sizes)


def rank_events(
    rank: int, arrivals: list[list[float]], clock_us: float = 0.0, jitter_us: float = 0.0, **more: Any
) -> list[dict[str, Any]]:
    """Steps in which each rank computes until it arrives, and all leave together when the transfer is over.

    Args:
        rank: Whose.
        arrivals: When each rank arrives, for each collective of a step, from its begin.
        clock_us: How far this rank's clock is ahead.
        jitter_us: How much later than the others it leaves, at most.
        more: Arguments of the collective.
    """
    noise = random.Random(rank)
    events, number = [], 0
    for step in range(N_STEPS):
        begin = step * STEP_US + clock_us
        events.append(event("user_annotation", f"ProfilerStep#{step}", begin, STEP_US))
        last_end = begin
        for every in arrivals:
            number += 2
            at, done = begin + every[rank], begin + max(every) + TRANSFER_US + noise.random() * jitter_us
            events += launched("ampere_sgemm_128x64_tn", last_end + 5, last_end + 50, at - last_end - 60, number)
            events += collective(number + 1, at - 40, at, done, **more)
            last_end = done
    return events


def save(folder: Path, rank: int, world: int, events: list[Any], name: str = "") -> Path:
    job = {"rank": rank, "world_size": world, "backend": "nccl"}
    path = folder / f"{name}rank{rank}.pt.trace.json.gz"
    path.write_bytes(gzip.compress(document(events, distributedInfo=job)))
    return path
