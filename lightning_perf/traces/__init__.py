"""Profiler traces, from a file or a live profiler, as records. Imports no torch."""

from .analyze import analyze, analyze_trace
from .columns import Trace
from .live import from_events, live_events
from .ranks import analyze_many
from .read import read

__all__ = [
    "Trace",
    "analyze",
    "analyze_many",
    "analyze_trace",
    "from_events",
    "live_events",
    "read",
]
