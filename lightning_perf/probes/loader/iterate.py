"""Iterate a loader that cannot be copied, and pin batches, in this process."""

import time
from typing import Any

import msgspec
import torch

from lightning_perf.interrupts import raise_if_from_signal
from lightning_perf.records import LoaderProbe

from .batch import BatchContents, point_of, summarize
from .child import error_line

_N_PINNED = 12


def iterate_loader(loader: Any, probe: LoaderProbe, budget_s: float) -> LoaderProbe:
    """Iterate a loader in this process for ``budget_s`` seconds; return its ``refused`` record with what was measured.

    Only for a process that does not train afterwards: the state of sampler, generators and files changes.
    """
    num_workers, prefetch = getattr(loader, "num_workers", None), getattr(loader, "prefetch_factor", None)
    contents = BatchContents()
    gaps_s: list[float] = []
    begin_s = time.perf_counter()
    try:
        batches = iter(loader)
        contents.add(next(batches))
        last_s = time.perf_counter()
        first_s = last_s - begin_s
        ahead = (num_workers or 0) * (prefetch or 0)
        for number, batch in enumerate(batches):
            now_s = time.perf_counter()
            if number >= ahead:  # earlier batches were made while the workers started
                gaps_s.append(now_s - last_s)
            if len(gaps_s) < 4:
                contents.add(batch)
            last_s = time.perf_counter()
            if last_s - begin_s > budget_s:
                break
        del batches
    except Exception as error:  # noqa: BLE001 - the user's code; its error is the reason
        raise_if_from_signal(error)
        is_empty = isinstance(error, StopIteration)
        text = "the loader has no batches" if is_empty else f"iterating the loader raised {error_line(error)}"
        return msgspec.structs.replace(probe, reason=f"{text}; {probe.reason}")
    missing = dict(probe.missing)
    if not gaps_s:
        missing["curve"] = "too few batches came in time to measure those after the start"
    return msgspec.structs.replace(
        probe,
        wall_s=time.perf_counter() - begin_s,
        num_workers=num_workers,
        **contents.fields(),
        first_batch_s=first_s,
        curve=(point_of(gaps_s, num_workers or 0, prefetch, first_s),) if gaps_s else (),
        missing=missing,
    )


def time_pinning(probe: LoaderProbe, device: torch.device) -> LoaderProbe:
    """Return the record with the time to pin as many tensors and bytes as its batch has, or the reason without it."""
    missing = {name: reason for name, reason in probe.missing.items() if name != "pin"}
    if device.type != "cuda":
        missing["pin"] = f"{device.type} needs no pinned memory"
        return msgspec.structs.replace(probe, missing=missing)
    if not probe.batch_bytes or not probe.n_tensors:
        missing["pin"] = "the contents of a batch are unknown"
        return msgspec.structs.replace(probe, missing=missing)
    size = max(1, probe.batch_bytes // probe.n_tensors)
    tensors = [torch.zeros(size, dtype=torch.uint8) for _ in range(probe.n_tensors)]
    durations_s: list[float] = []
    for _ in range(_N_PINNED):
        begin_s = time.perf_counter()
        pinned = [tensor.pin_memory() for tensor in tensors]
        durations_s.append(time.perf_counter() - begin_s)
        del pinned
    # The first two create the device's context and pinned pages, which torch then reuses.
    return msgspec.structs.replace(probe, pin=summarize(durations_s[2:]), missing=missing)
