"""A long run without a Trainer: the probes, driven by hand, with a clock that moves only when told."""

from __future__ import annotations

import time
import tracemalloc
from typing import NamedTuple

import psutil

from lightning_perf.probes.spans import FetchSpan, Span, Timeline
from lightning_perf.probes.stage import StageProbe

SETTLED_STEPS = 10_000
"""After so many steps every table, ring and histogram has its final size, or nearly."""

TRACED_STEPS = 100_000
"""Tracing every allocation makes steps many times as slow."""


class FakeClock:
    """Host clock in nanoseconds that moves only when ``advance`` is called."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        self.now += round(seconds * 1e9)


class Simulation(NamedTuple):
    """What a simulated run took.

    Attributes:
        n_steps: Untraced.
        settled_bytes: Python's memory after ``SETTLED_STEPS`` steps.
        final_bytes: The same after ``TRACED_STEPS`` steps.
        step_us: Time a step, the driving loop's own included, without memory tracing.
        rss_growth_bytes: Of the process, from the settled state to the end.
    """

    n_steps: int
    settled_bytes: int
    final_bytes: int
    rss_growth_bytes: int
    step_us: float


class SimulatedLoop:
    """The spans and events of a training step in Lightning's order, on a clock driven by hand."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.timeline = Timeline(self.clock, _raise)
        self.probe = StageProbe(self.timeline)
        self.timeline.set_base("other")
        probe = self.probe
        self._fetch = FetchSpan(self.timeline, probe.fetch_begins, probe.fetch_ends)
        self._transfer = Span(self.timeline, "transfer")
        self._spans = [Span(self.timeline, phase) for phase in ("forward", "backward", "optimizer", "callbacks")]
        self._n = 0

    def run(self, n_steps: int) -> None:
        """Makes so many steps; each 97th is five times as long, so that there are outliers to keep."""
        clock, probe = self.clock, self.probe
        batch = [[0.0]]
        for _ in range(n_steps):
            self._n += 1
            pace_s = 5e-3 if self._n % 97 == 0 else 1e-3
            with self._fetch:
                clock.advance(pace_s / 10)
            with self._transfer:
                clock.advance(pace_s / 20)
            probe.batch_begins(batch)
            for span in self._spans:
                with span:
                    clock.advance(pace_s)
            probe.batch_ends()


def run(n_steps: int) -> Simulation:
    """Simulates twice: once for the time, once, traced, for the memory."""
    loop = SimulatedLoop()
    loop.run(SETTLED_STEPS)
    rss = psutil.Process().memory_info().rss
    start = time.perf_counter()
    loop.run(n_steps - SETTLED_STEPS)
    elapsed_s = time.perf_counter() - start
    rss_growth = psutil.Process().memory_info().rss - rss
    settled_bytes, final_bytes = traced_bytes(TRACED_STEPS)
    return Simulation(n_steps, settled_bytes, final_bytes, rss_growth, elapsed_s / (n_steps - SETTLED_STEPS) * 1e6)


def traced_bytes(n_steps: int) -> tuple[int, int]:
    """Python's memory after ``SETTLED_STEPS`` and after ``n_steps`` steps."""
    tracemalloc.start()
    try:
        loop = SimulatedLoop()
        loop.run(SETTLED_STEPS)
        loop.probe.stage_times()
        settled, _ = tracemalloc.get_traced_memory()
        loop.run(n_steps - SETTLED_STEPS)
        loop.probe.stage_times()
        final, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return settled, final


def as_text(simulation: Simulation) -> str:
    """Two sentences."""
    kib = 1024
    return (
        f"{simulation.n_steps:,} steps: the process's resident memory grew by {simulation.rss_growth_bytes / kib:,.0f} "
        f"KiB after the first {SETTLED_STEPS:,}. Traced, Python's memory was {simulation.settled_bytes / kib:,.0f} KiB "
        f"after {SETTLED_STEPS:,} steps and {simulation.final_bytes / kib:,.0f} KiB after {TRACED_STEPS:,}. "
        f"A step took {simulation.step_us:.1f} µs, the simulation's own loop included."
    )


def _raise(error: Exception) -> None:
    raise error
