"""Simulate a long run without a Trainer: call the probes directly, with a fake clock."""

from __future__ import annotations

import time
import tracemalloc
from typing import NamedTuple

import psutil

from lightning_perf.probes.timeline.spans import FetchSpan, Span, Timeline
from lightning_perf.probes.timeline.stage import StageTimer

SETTLED_STEPS = 10_000
"""Steps after which every table, ring buffer and histogram has about its final size."""

TRACED_STEPS = 100_000
"""Steps simulated under tracemalloc, which makes them many times slower."""


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
    """Time and memory of a simulated run.

    Attributes:
        n_steps: Steps without tracemalloc.
        settled_bytes: Python memory after ``SETTLED_STEPS`` steps.
        final_bytes: Python memory after ``TRACED_STEPS`` steps.
        step_us: Time per step without tracemalloc, including the simulation's own loop.
        rss_growth_bytes: Growth of resident memory after ``SETTLED_STEPS`` steps.
    """

    n_steps: int
    settled_bytes: int
    final_bytes: int
    rss_growth_bytes: int
    step_us: float


class SimulatedLoop:
    """The spans and events of a training step in Lightning's order, with a fake clock."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.timeline = Timeline(self.clock, _raise)
        self.probe = StageTimer(self.timeline)
        self.timeline.set_base("other")
        probe = self.probe
        self._fetch = FetchSpan(self.timeline, probe.fetch_begins, probe.fetch_ends)
        self._transfer = Span(self.timeline, "transfer")
        self._spans = [Span(self.timeline, phase) for phase in ("forward", "backward", "optimizer", "callbacks")]
        self._n = 0

    def run(self, n_steps: int) -> None:
        """Run ``n_steps`` steps; every 97th is five times as long, so that there are outliers."""
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
    """Simulate twice: once for the time, once under tracemalloc for the memory."""
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
    """Return Python memory after ``SETTLED_STEPS`` and after ``n_steps`` steps."""
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
    """Return the result as text."""
    kib = 1024
    return (
        f"{simulation.n_steps:,} steps: the process's resident memory grew by {simulation.rss_growth_bytes / kib:,.0f} "
        f"KiB after the first {SETTLED_STEPS:,}. Python memory by tracemalloc was "
        f"{simulation.settled_bytes / kib:,.0f} KiB after {SETTLED_STEPS:,} steps "
        f"and {simulation.final_bytes / kib:,.0f} KiB after "
        f"{TRACED_STEPS:,}. A step took {simulation.step_us:.1f} µs, including the simulation's own loop."
    )


def _raise(error: Exception) -> None:
    raise error
