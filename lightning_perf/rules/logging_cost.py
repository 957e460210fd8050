"""Tells a logger that is slow from one that is called too often: the same time must not be blamed on both."""

from __future__ import annotations

from collections.abc import Iterable

from lightning_perf.records import NamedTime, StageTimes

from .signals import named_by_kind

# Writing a row of a CSV file or a few TensorBoard scalars takes some 10 to 500 us; what takes longer waits for a disk
# or a network, or rewrites a whole file.
SLOW_CALL_S = 1e-3


def loggers_of(steady: StageTimes) -> dict[str, list[NamedTime]]:
    """The loggers' times by name, the costliest first."""
    return named_by_kind(steady, "logger")


def call_s(time: NamedTime) -> float:
    """Mean seconds a call."""
    return time.total_s / max(1, time.n_calls)


def slow_calls(times: Iterable[NamedTime]) -> list[NamedTime]:
    """The methods whose calls are slow themselves, however often they are made."""
    return [time for time in times if call_s(time) >= SLOW_CALL_S]
