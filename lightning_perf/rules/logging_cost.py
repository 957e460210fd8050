"""Tells a logger that is slow from one that is called too often: the same time must not be blamed on both."""

from __future__ import annotations

from collections.abc import Iterable

from lightning_perf.records import NamedTime, Session, StageTimes

from .signals import named_by_kind

# Writing a row of a CSV file or a few TensorBoard scalars takes some 10 to 500 us; what takes longer waits for a disk
# or a network, or rewrites a whole file.
SLOW_CALL_S = 1e-3
# A hundred metrics take several milliseconds, on a busy machine more. Where a run logs at nearly every step, logging
# less often is the one-line cure of all of that; only what must be a slow disk or network is still the logger's own.
# A logger that took 40 ms for a row was blamed on its interval at the clinic while the bound was 50 ms.
SLOW_FREQUENT_CALL_S = 25e-3
FREQUENT_STEPS = 10
"""Below this ``log_every_n_steps`` a run logs at nearly every step; Lightning's default is 50."""


def loggers_of(steady: StageTimes) -> dict[str, list[NamedTime]]:
    """The loggers' times by name, the costliest first."""
    return named_by_kind(steady, "logger")


def call_s(time: NamedTime) -> float:
    """Mean seconds a call."""
    return time.total_s / max(1, time.n_calls)


def slow_call_s(session: Session) -> float:
    """From how many seconds on a call counts as slow in this run."""
    interval = session.settings.trainer.log_every_n_steps
    return SLOW_FREQUENT_CALL_S if interval is not None and interval < FREQUENT_STEPS else SLOW_CALL_S


def slow_calls(times: Iterable[NamedTime], session: Session) -> list[NamedTime]:
    """The methods whose calls are slow themselves, however often they are made."""
    bound_s = slow_call_s(session)
    return [time for time in times if call_s(time) >= bound_s]
