"""Measure the parts of PerfDoctor's per-step overhead, each in a separate tight loop."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from lightning_perf.probes.clock import now_ns
from lightning_perf.probes.timeline.spans import FetchSpan, NullSpan, Span, Timeline
from lightning_perf.probes.timeline.stage import RECORDS_BEFORE_AGGREGATION, StageTimer

_REPEATS = 20_000
_ROUNDS = 7


class Part(NamedTuple):
    """A part and its microseconds per call."""

    name: str
    step_us: float


def measure() -> list[Part]:
    """Return for each part the lowest mean of seven rounds, the least disturbed by other programs."""
    timeline = Timeline(now_ns, _raise)
    span, fetch = Span(timeline, "other"), FetchSpan(timeline, bool, _nothing)

    def enter(context: Any) -> Callable[[], None]:
        def once() -> None:
            with context:
                pass

        return once

    once_us = _least_us(_nothing)
    return [
        Part("one clock read", _least_us(now_ns)),
        Part("enter and leave a span", _least_us(enter(span)) - once_us),
        Part("enter and leave the fetch span, without its callbacks", _least_us(enter(fetch)) - once_us),
        Part("an action that is not measured", _least_us(enter(NullSpan("an action"))) - once_us),
        Part("the same with Lightning's pass-through profiler", _least_us(_pass_through) - once_us),
        Part("events of one step: batch size, step record, aggregation", _events_us()),
        Part("one aggregation, per step it adds", _aggregation_us()),
    ]


def as_text(found: Sequence[Part]) -> str:
    """Return the parts as text for a terminal."""
    return "\n".join(f"{part.name:56}{part.step_us:8.2f} µs" for part in found)


def _least_us(function: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(_ROUNDS):
        start = time.perf_counter_ns()
        for _ in range(_REPEATS):
            function()
        best = min(best, time.perf_counter_ns() - start)
    return best / _REPEATS / 1e3


@contextlib.contextmanager
def _generator() -> Iterator[None]:
    yield


def _pass_through() -> None:
    with _generator():
        pass


def _events_us() -> float:
    import torch

    probe = StageTimer(Timeline(now_ns, _raise))
    batch = torch.zeros(4, 8)

    def step() -> None:
        probe.fetch_begins()
        probe.batch_begins(batch)
        probe.batch_ends()

    return _least_us(step)


def _aggregation_us() -> float:
    """Return the median time of an aggregation per step record; early ones merge more."""
    taken_ns = []
    probe = StageTimer(Timeline(now_ns, _raise))
    for _ in range(20):
        for _ in range(RECORDS_BEFORE_AGGREGATION):
            probe.fetch_begins()
            probe.batch_begins(None)
            probe.is_in_batch = False
        start = time.perf_counter_ns()
        probe.aggregate()
        taken_ns.append(time.perf_counter_ns() - start)
    return statistics.median(taken_ns) / RECORDS_BEFORE_AGGREGATION / 1e3


def _nothing() -> None:
    return None


def _raise(error: Exception) -> None:
    raise error
