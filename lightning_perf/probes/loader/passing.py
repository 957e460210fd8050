"""Times a loader as it is: what is left where it cannot be taken apart."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import torch

from lightning_perf.interrupts import raise_if_from_signal
from lightning_perf.records.loader_probe import LoaderProbe, WorkerPoint

from .batch import BatchContents
from .child import one_line
from .numbers import mean_interval, repeated

_N_PINNED = 12


def time_passing(loader: Any, probe: LoaderProbe, budget_s: float) -> LoaderProbe:
    """Iterates a loader, here and now, and adds what that shows to the record of its refusal.

    Only for a process that does not train afterwards: sampler, generators and files move on.

    Args:
        loader: Anything that yields batches.
        probe: Its record, ``refused``.
        budget_s: When to stop; a batch that takes longer is waited for.
    """
    num_workers = getattr(loader, "num_workers", None)
    contents = BatchContents()
    gaps_s: list[float] = []
    begin_s = time.perf_counter()
    first_s = 0.0
    try:
        batches = iter(loader)
        contents.add(next(batches))
        last_s = time.perf_counter()
        first_s = last_s - begin_s
        ahead = (num_workers or 0) * (getattr(loader, "prefetch_factor", None) or 0)
        for number, batch in enumerate(batches):
            now_s = time.perf_counter()
            if number >= ahead:  # those before were made while the workers started
                gaps_s.append(now_s - last_s)
            if len(gaps_s) < 4:
                contents.add(batch)
            last_s = time.perf_counter()
            if last_s - begin_s > budget_s:
                break
        del batches
    except Exception as error:  # noqa: BLE001 - the user's code; its error is the reason
        raise_if_from_signal(error)
        text = "it has no batches" if isinstance(error, StopIteration) else f"iterating it raised {one_line(error)}"
        return msgspec.structs.replace(probe, reason=f"{probe.reason}; {text}")
    missing = dict(probe.missing)
    curve: tuple[WorkerPoint, ...] = ()
    if gaps_s:
        low, high = mean_interval(gaps_s)
        curve = (
            WorkerPoint(
                num_workers=num_workers or 0,
                prefetch_factor=getattr(loader, "prefetch_factor", None),
                batch_s=sum(gaps_s) / len(gaps_s),
                low_s=low,
                high_s=high,
                first_batch_s=first_s,
                n_batches=len(gaps_s),
            ),
        )
    else:
        missing["curve"] = "it has too few batches to time those after its start"
    return msgspec.structs.replace(
        probe,
        wall_s=time.perf_counter() - begin_s,
        num_workers=num_workers,
        batch_bytes=contents.n_bytes,
        n_tensors=contents.n_tensors,
        n_objects=contents.n_objects,
        bytes_by_dtype=dict(contents.by_dtype),
        narrow_bytes=contents.narrow_bytes,
        first_batch_s=first_s,
        curve=curve,
        missing=missing,
    )


def time_pinning(probe: LoaderProbe, device: torch.device) -> LoaderProbe:
    """Times the pinning of as many bytes in as many tensors as a batch has, in this process.

    Args:
        probe: The record; what a batch holds must be known.
        device: That the training uses.
    """
    missing = {name: reason for name, reason in probe.missing.items() if name != "pin"}
    if device.type != "cuda":
        missing["pin"] = f"{device.type} needs no pinned memory"
        return msgspec.structs.replace(probe, missing=missing)
    if not probe.batch_bytes or not probe.n_tensors:
        missing["pin"] = "what a batch holds is not known"
        return msgspec.structs.replace(probe, missing=missing)
    size = max(1, probe.batch_bytes // probe.n_tensors)
    tensors = [torch.zeros(size, dtype=torch.uint8) for _ in range(probe.n_tensors)]
    durations_s: list[float] = []
    for _ in range(_N_PINNED):
        begin_s = time.perf_counter()
        pinned = [tensor.pin_memory() for tensor in tensors]
        durations_s.append(time.perf_counter() - begin_s)
        del pinned
    # The first makes the device's context and pinned pages, which torch then keeps for the next.
    return msgspec.structs.replace(probe, pin=repeated(durations_s[2:]), missing=missing)
