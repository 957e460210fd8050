"""Record torch's history of allocations, write it for torch's viewer, and summarize it."""

import functools
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from lightning_perf.probes.sampled_steps.code_lines import USER, owner_of, short_place
from lightning_perf.records import AllocationSite
from lightning_perf.records.files import SpaceCheckedFile, require_free_space, whole_file

MAX_ENTRIES = 100_000
"""Events kept in a ring: about 100 MB of host memory with Python stacks; the last seconds of a training."""

_MAX_POINTS = 120
_MAX_SITES = 10


def history_of(device: Any) -> tuple[Any, str]:
    """Return ``torch.cuda.memory``, which does not record yet, and an empty reason; or None and why it cannot."""
    if device.type != "cuda":
        return None, f"memory_snapshot=True: torch keeps a history of allocations for CUDA only, not for {device.type}"
    memory: Any = torch.cuda.memory
    if not hasattr(memory, "_record_memory_history") or not hasattr(memory, "_snapshot"):
        return None, f"memory_snapshot=True: torch {torch.__version__} has no history of allocations"
    is_recording = getattr(torch._C, "_cuda_isHistoryEnabled", lambda: False)
    if is_recording():
        return None, "memory_snapshot=True: another history is being recorded"
    return memory, ""


def write_history(snapshot: Mapping[str, Any], file: Path) -> None:
    """Write a snapshot for torch's own viewer.

    Raises:
        OSError: The disk has no room for it.
    """
    require_free_space(file.parent, 0)
    with whole_file(file) as opened:
        pickle.dump(snapshot, SpaceCheckedFile(opened, file.parent))


def read_history(snapshot: Mapping[str, Any]) -> tuple[tuple[tuple[int, int], ...], tuple[AllocationSite, ...]]:
    """Summarize a snapshot.

    Returns:
        ``(event, bytes allocated)`` of the device with the longest history, thinned out but with its peak; and the
            memory held at its end by the Python line that allocated it, largest first.
    """
    traces: Sequence[Sequence[Mapping[str, Any]]] = snapshot.get("device_traces", ())
    trace = max(traces, key=len, default=())
    changes = [_change(event) for event in trace]
    # What was allocated before the ring's oldest event is known from the end: the live blocks minus all changes.
    device = traces.index(trace) if trace else 0
    held_at_end = sum(int(block.get("size", 0)) for block in _live_blocks(snapshot, device))
    level = max(0, held_at_end - sum(changes)) if held_at_end else 0
    curve: list[tuple[int, int]] = []
    for i, change in enumerate(changes):
        level += change
        if change:
            curve.append((i, level))
    return _thinned(curve), _sites(snapshot, device)


def _change(event: Mapping[str, Any]) -> int:
    size = int(event.get("size", 0))
    return {"alloc": size, "free_completed": -size}.get(str(event.get("action")), 0)


def _live_blocks(snapshot: Mapping[str, Any], device: int) -> list[Mapping[str, Any]]:
    segments = [s for s in snapshot.get("segments", ()) if s.get("device", device) == device]
    return [b for segment in segments for b in segment.get("blocks", ()) if b.get("state") == "active_allocated"]


def _sites(snapshot: Mapping[str, Any], device: int) -> tuple[AllocationSite, ...]:
    held: dict[str, list[int]] = {}
    is_users = functools.cache(lambda name: bool(name) and name[0] != "<" and owner_of(name) == USER)
    for block in _live_blocks(snapshot, device):
        total = held.setdefault(_where(block.get("frames", ()), is_users), [0, 0])
        total[0] += int(block.get("size", 0))
        total[1] += 1
    ordered = sorted(held.items(), key=lambda item: -item[1][0])[:_MAX_SITES]
    return tuple(AllocationSite(where=where, n_bytes=total[0], n=total[1]) for where, total in ordered)


def _where(frames: Sequence[Mapping[str, Any]], is_users: Callable[[str], bool]) -> str:
    """Return the user's innermost line; the innermost of all if none is the user's."""
    for frame in frames:
        name = str(frame.get("filename", ""))
        if is_users(name):
            return short_place(name, frame.get("line"), frame.get("name"))
    return str(frames[0].get("name")) if frames else "allocated before the history began"


def _thinned(curve: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return at most ``_MAX_POINTS`` points: the highest of each stretch."""
    if len(curve) <= _MAX_POINTS:
        return tuple(curve)
    width = len(curve) / _MAX_POINTS
    stretches = (curve[int(i * width) : int((i + 1) * width)] for i in range(_MAX_POINTS))
    return tuple(max(stretch, key=lambda point: point[1]) for stretch in stretches)
