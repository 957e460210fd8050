"""Profiler traces, from a file or a live profiler, as records. Imports no torch."""

from .analyze import analyze, analyze_trace
from .columns import Origin, Trace
from .live import from_events, live_events
from .ranks import analyze_many, in_order, trace_files
from .read import read

__all__ = [
    "Origin",
    "Trace",
    "analyze",
    "analyze_many",
    "analyze_trace",
    "from_events",
    "in_order",
    "live_events",
    "read",
    "trace_files",
]
