"""Measure one reading in this process: ``python arm.py READER TRACE`` prints CPU seconds and peak memory.

Run it with the reader's own interpreter; this file imports nothing that only the others need. Imports are not timed.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any


def ours(path: str) -> Callable[[], Any]:
    """Load and analyze everything."""
    from lightning_perf.traces import analyze

    return lambda: analyze(path)


def hta(path: str) -> Callable[[], Any]:
    """Load, then compute the temporal and the idle breakdown."""
    from hta.trace_analysis import TraceAnalysis  # type: ignore[import-not-found]

    def run() -> None:
        analysis = TraceAnalysis(trace_files={0: path}, trace_dir=os.path.dirname(path))
        analysis.get_temporal_breakdown(visualize=False)
        analysis.get_idle_time_breakdown(ranks=[0], visualize=False)

    return run


def tb(path: str) -> Callable[[], Any]:
    """Load as the old tab does when it is opened."""
    from torch_tb_profiler.profiler.data import RunProfileData  # type: ignore[import-not-found]

    def run() -> None:
        data = RunProfileData.parse("worker", None, path, tempfile.mkdtemp())
        data.process()
        data.analyze()

    return run


READERS = {"ours": ours, "hta": hta, "tb": tb}


def main() -> None:
    """Run one reader once."""
    logging.disable(logging.CRITICAL)
    name, path = sys.argv[1:3]
    run = READERS[name](os.path.abspath(path))
    before_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    cpu, wall = time.process_time(), time.perf_counter()
    children = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    run()
    cpu_s = time.process_time() - cpu + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - children
    print(
        json.dumps(
            {
                "cpu_s": cpu_s,
                "wall_s": time.perf_counter() - wall,
                "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                "imports_bytes": before_bytes,
            }
        )
    )


if __name__ == "__main__":
    main()
