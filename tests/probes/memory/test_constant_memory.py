"""The probes' memory does not grow with the number of steps."""

from __future__ import annotations

import tracemalloc

from lightning_perf.probes.timeline.spans import FetchSpan, Span, Timeline
from lightning_perf.probes.timeline.stage import StageTimer
from tests.fakes import FakeClock

SETTLED_STEPS = 20_000
N_STEPS = 100_000
MOST_GROWTH_BYTES = 192 * 1024  # less than a third of 8 bytes per step


class SimulatedTraining:
    """Steps of about a millisecond, every 97th of them five times as long, on a clock driven by hand."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        timeline = Timeline(self.clock, _raise)
        timeline.set_base("other")
        self.probe = StageTimer(timeline)
        self.fetch = FetchSpan(timeline, self.probe.fetch_begins, self.probe.fetch_ends)
        self.forward = Span(timeline, "forward")
        self.n_steps = 0

    def run(self, n_steps: int) -> None:
        for _ in range(n_steps):
            self.n_steps += 1
            with self.fetch:
                self.clock.now += 100_000
            self.probe.batch_begins(None)
            with self.forward:
                self.clock.now += 5_000_000 if self.n_steps % 97 == 0 else 1_000_000
            self.probe.batch_ends()


def _raise(error: Exception) -> None:
    raise error


def _held_bytes(training: SimulatedTraining) -> int:
    training.probe.stage_times()  # folds what is kept as rows, so that the same is held each time
    held, _ = tracemalloc.get_traced_memory()
    return held


def test_stage_probe_memory_stays_flat_when_a_hundred_thousand_steps_pass() -> None:
    tracemalloc.start()
    try:
        training = SimulatedTraining()
        training.run(SETTLED_STEPS)
        settled_bytes = _held_bytes(training)
        training.run(N_STEPS - SETTLED_STEPS)
        growth_bytes = _held_bytes(training) - settled_bytes
    finally:
        tracemalloc.stop()

    times = training.probe.stage_times()
    assert times is not None
    assert times.n_steps + times.n_warmup_steps >= N_STEPS - 1
    assert growth_bytes < MOST_GROWTH_BYTES
