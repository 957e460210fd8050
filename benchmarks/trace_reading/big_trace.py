"""Write a synthetic trace of any size: training steps with operators, launches and kernels, like torch's profiler."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

_HEAD = b"""{
  "schemaVersion": 1,
  "deviceProperties": [{"id": 0, "name": "Made up", "totalGlobalMem": 85018279936, "computeMajor": 9}],
  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},
  "traceEvents": [
"""
_EVENT = """  {
    "ph": "X", "cat": "%s", "name": "%s", "pid": %d, "tid": %d,
    "ts": %.3f, "dur": %.3f,
    "args": {
      %s
    }
  }"""
_KERNELS_A_STEP = 500
_NAMES = tuple(
    f"void at::native::vectorized_elementwise_kernel<4, at::native::Functor{i}<float>, std::array<char*, 3ul> >(int)"
    for i in range(120)
)


def write_trace(path: Path, n_bytes: int = 0, n_events: int = 0) -> int:
    """Write whole steps until the file has ``n_bytes`` or the trace ``n_events``; return the number of events."""
    written = step = 0
    with path.open("wb") as file:
        file.write(_HEAD)
        while (n_bytes and file.tell() < n_bytes) or (n_events and written < n_events):
            written += _write_step(file, step)
            step += 1
        file.write(b'\n  ],\n  "traceName": "big.json"\n}\n')
    return written


def _write_step(file: BinaryIO, step: int) -> int:
    start = 1_419_116_104_994.671 + step * 20_000
    events = [_EVENT % ("user_annotation", f"ProfilerStep#{step}", 7, 7, start, 19_990.5, '"External id": 1')]
    for i in range(_KERNELS_A_STEP):
        at = start + 20 + i * 39
        number = step * _KERNELS_A_STEP + i
        name = _NAMES[i % len(_NAMES)]
        link = f'"External id": {number}, "correlation": {number + 1}'
        shapes = f'"External id": {number}, "Ev Idx": {number}, "Input Dims": [[64, 256], [256, 256]]'
        events.append(_EVENT % ("cpu_op", f"aten::op_{i % 50}", 7, 7, at, 30.25, shapes))
        events.append(_EVENT % ("cuda_runtime", "cudaLaunchKernel", 7, 7, at + 10, 6.5, f'"cbid": 211, {link}'))
        work = f'"queued": 0, "device": 0, "context": 1, "stream": 7, {link}, "grid": [56, 2, 1], "block": [384, 1, 1]'
        events.append(_EVENT % ("kernel", name, 0, 7, at + 20, 25.125, work))
    file.write(b",\n" if step else b"")
    file.write(",\n".join(events).encode())
    return len(events)
