"""Synthetic traces."""

import gzip
import json
from pathlib import Path
from typing import Any

from lightning_perf.records import TraceRecord
from lightning_perf.traces import analyze


def event(
    category: str, name: str, start_us: float, duration_us: float, tid: Any = 1, **arguments: Any
) -> dict[str, Any]:
    return {
        "ph": "X", "cat": category, "name": name, "pid": 7, "tid": tid, "ts": start_us, "dur": duration_us,
        "args": arguments,
    }  # fmt: skip


def launched(
    name: str, call_us: float, start_us: float, duration_us: float, correlation: int, category: str = "kernel"
) -> list[dict[str, Any]]:
    """A kernel, with the call that enqueued it."""
    return [
        event("cuda_runtime", "cudaLaunchKernel", call_us, 5, correlation=correlation),
        event(category, name, start_us, duration_us, tid=7, correlation=correlation, device=0, stream=7),
    ]


def requested(
    call: str, start_us: float, kernel_us: tuple[float, float], number: int, kernel: str, **arguments: Any
) -> list[dict[str, Any]]:
    """A collective that c10d requested: its operator, its annotation, and the kernel that it launches."""
    return [
        event("cpu_op", "record_param_comms", start_us + 1, 18, **arguments),
        event("user_annotation", call, start_us + 2, 16),
        *launched(kernel, start_us + 4, *kernel_us, number),
    ]


def document(events: list[Any], **fields: Any) -> bytes:
    return json.dumps({"schemaVersion": 1, **fields, "traceEvents": events}).encode()


def analyzed(folder: Path, events: list[Any], **fields: Any) -> TraceRecord:
    """Return the analysis of a trace of these events."""
    return analyze(write(folder / "t.json", document(events, **fields)))


def write(path: Path, content: bytes, is_gzip: bool = False) -> Path:
    path.write_bytes(gzip.compress(content, mtime=0) if is_gzip else content)
    return path


SMALL = [
    event("user_annotation", "ProfilerStep#1", 1000, 1000),
    event("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 1000, 400),
    event("cpu_op", "aten::mm", 1450, 100, **{"Input Dims": [[8, 4], [4, 6]], "Input type": ["float", "float"]}),
    *launched("ampere_sgemm_128x64_tn", 1460, 1480, 300, 1),
    *launched("void at::native::vectorized_elementwise_kernel<4>", 1850, 1870, 100, 2),
]
