from __future__ import annotations

import pytest
import torch

from lightning_perf.probes.clock import DeviceClock, device_clock
from lightning_perf.probes.timeline.device_times import DeviceAggregator
from lightning_perf.probes.timeline.spans import Timeline
from lightning_perf.probes.timeline.stage import StageTimer
from tests.fakes import FakeClock, FakeDevice


def _raise(error: Exception) -> None:
    raise error


class Run:
    """A loop that fetches and launches work on a device that runs by itself."""

    def __init__(self) -> None:
        self.host = FakeClock()
        self.device = FakeDevice(self.host)
        self.clock = DeviceClock(self.device.event, "fake", _raise)

    def step(self, fetch_s: float, host_s: float, device_s: float, is_counted: bool = True) -> None:
        self.clock.before_fetch()
        self.host.advance(fetch_s)
        self.clock.after_fetch(is_counted)
        self.host.advance(host_s)
        self.device.launch(device_s)

    def drain(self) -> list[tuple[float, float]]:
        """What is resolved once the device has done everything: (step, starved) in seconds."""
        self.host.now = max(self.host.now, self.device.free_at_ns)
        self.clock._resolve()
        return [(step / 1e9, starved / 1e9) for step, starved, _ in self.clock.resolved]


def test_device_is_not_starved_when_the_host_merely_waits_while_it_works() -> None:
    run = Run()
    for _ in range(10):
        run.step(fetch_s=0.04, host_s=0.01, device_s=0.1)
    resolved = run.drain()
    assert len(resolved) == 9
    # The first fetch that follows work is already hidden behind it.
    assert all(starved == 0 for _, starved in resolved[1:])
    assert all(step == pytest.approx(0.1) for step, _ in resolved[1:])


def test_device_is_starved_while_it_is_idle_when_the_batch_is_late() -> None:
    run = Run()
    for _ in range(10):
        run.step(fetch_s=0.1, host_s=0.01, device_s=0.03)
    # Of the 0.1 s that the host waits, the device works 0.03 s on what was launched before.
    for step_s, starved_s in run.drain():
        assert starved_s == pytest.approx(0.07)
        assert step_s == pytest.approx(0.11)


def test_all_steps_count_alike_when_later_ones_are_measured_more_rarely() -> None:
    run, times = Run(), DeviceAggregator()
    n_slow, n = 300, 3000
    for i in range(n):  # in the first tenth the device waits for a third of each step
        run.step(fetch_s=0.02 if i < n_slow else 0.0, host_s=0.01, device_s=0.01)
    run.drain()
    times.add(run.clock.resolved)
    record = times.record(run.clock)
    assert record is not None
    assert record.starved_share == pytest.approx(0.1 * 0.01 / (0.1 * 0.03 + 0.9 * 0.01), rel=0.2)
    assert record.step_s.mean == pytest.approx(0.012, rel=0.05)


def test_each_step_counts_when_the_run_is_short() -> None:
    run, times = Run(), DeviceAggregator()
    for _ in range(100):
        run.step(fetch_s=0.01, host_s=0.01, device_s=0.01)
    run.drain()
    times.add(run.clock.resolved)
    record = times.record(run.clock)
    assert record is not None
    assert record.n == 99


def test_first_fetch_of_an_epoch_is_left_out() -> None:
    run = Run()
    for i in range(6):
        run.step(0.1, 0.01, 0.03, is_counted=i != 3)
    assert len(run.drain()) == 4


def test_events_are_pooled_when_the_run_is_long() -> None:
    made = []
    run = Run()
    run.clock = DeviceClock(lambda: made.append(1) or run.device.event(), "fake", _raise)
    for _ in range(500):
        run.step(0.01, 0.01, 0.015)
        run.clock.resolved.clear()
    assert len(made) < 10


def test_only_some_later_steps_are_measured_when_the_run_is_long() -> None:
    run = Run()
    periods = 10
    for _ in range(DeviceClock.N_FIRST + periods * DeviceClock.PERIOD):
        run.step(fetch_s=0.01, host_s=0.01, device_s=0.005)
    resolved = run.drain()
    # Of each period's fetches, all but the first end a step whose start was marked.
    assert len(resolved) <= DeviceClock.N_FIRST + periods * DeviceClock.N_OF_PERIOD
    assert len(resolved) >= DeviceClock.N_FIRST - 1 + (periods - 1) * (DeviceClock.N_OF_PERIOD - 1)
    assert [step for step, _ in resolved] == [pytest.approx(0.02)] * len(resolved)


def test_pending_events_stay_bounded_when_the_device_never_answers() -> None:
    run = Run()
    run.device.launch(1e6)
    for _ in range(DeviceClock.MAX_PENDING + 50):
        run.step(0.001, 0.001, 0.001)
    assert len(run.clock._pending) == DeviceClock.MAX_PENDING
    assert run.clock.resolved == []


def test_measuring_goes_on_when_a_device_that_was_far_behind_has_caught_up() -> None:
    run = Run()
    run.device.launch(1e6)
    for _ in range(DeviceClock.MAX_PENDING + 50):
        run.step(0.001, 0.001, 0.001)
    run.drain()
    run.clock.resolved.clear()
    for _ in range(14):
        run.step(0.01, 0.01, 0.015)
    # The first follows the fetches that are left out, so it is no step.
    assert [step for step, _ in run.drain()] == [pytest.approx(0.025), *[pytest.approx(0.02)] * 12]


def test_full_queue_is_resolved_by_the_next_fetch_when_the_device_has_caught_up() -> None:
    run = Run()
    run.device.launch(1e6)
    for _ in range(DeviceClock.MAX_PENDING + 50):
        run.step(0.001, 0.001, 0.001)
    run.host.now = run.device.free_at_ns
    run.clock.before_fetch()
    assert len(run.clock._pending) == 0
    assert len(run.clock.resolved) == DeviceClock.MAX_PENDING - 1


def test_nothing_spans_a_pause_when_it_is_forgotten() -> None:
    run = Run()
    run.step(0.01, 0.01, 0.02)
    run.step(0.01, 0.01, 0.02)
    run.clock.forget()
    run.host.advance(50)
    run.step(0.01, 0.01, 0.02)
    run.step(0.01, 0.01, 0.02)
    assert [step for step, _ in run.drain()] == [pytest.approx(0.03)]


def test_error_is_reported_once_and_marking_stops_when_an_event_fails() -> None:
    errors: list[Exception] = []
    run = Run()

    def broken() -> None:
        raise RuntimeError("no events left")

    run.clock = DeviceClock(broken, "fake", errors.append)  # type: ignore[arg-type]
    for _ in range(3):
        run.step(0.01, 0.01, 0.02)
    assert [str(error) for error in errors] == ["no events left"]


def test_cpu_has_no_device_clock_and_a_reason() -> None:
    clock, reason = device_clock(torch.device("cpu"), _raise)
    assert clock is None
    assert "CPU" in reason


def test_record_holds_starved_and_busy_time() -> None:
    run = Run()
    timeline = Timeline(run.host, lambda error: None)
    probe = StageTimer(timeline, run.clock)
    probe.epoch_begins(0)
    for _ in range(12):
        probe.fetch_begins()
        run.host.advance(0.1)
        probe.fetch_ends()
        probe.batch_begins(None)
        run.host.advance(0.01)
        run.device.launch(0.03)
        probe.batch_ends()
    run.drain()
    times = probe.device_times()
    assert times is not None
    assert times.backend == "fake"
    assert times.n == 10  # the first holds the work of the first step
    assert times.starved_s == pytest.approx(10 * 0.07, rel=1e-6)
    assert times.starved_s + times.busy_s == pytest.approx(10 * 0.11, rel=1e-6)
    assert times.starved_share == pytest.approx(7 / 11)
    assert times.step_s.p50 == pytest.approx(0.11, rel=0.02)


class Device:
    """A stage's probe on a device that runs by itself."""

    def __init__(self) -> None:
        self.host = FakeClock()
        self.device = FakeDevice(self.host)
        self.clock = DeviceClock(self.device.event, "fake", _raise)
        timeline = Timeline(self.host, lambda error: None)
        self.probe = StageTimer(timeline, self.clock)
        self.probe.epoch_begins(0)
        timeline.set_base("other")

    def steps(self, n: int, seconds: float, left_out: bool = False) -> None:
        for _ in range(n):
            self.probe.fetch_begins()
            self.probe.fetch_ends()
            self.probe.batch_begins(None)
            if left_out:
                self.probe.leave_out()
            self.device.launch(seconds)
            self.host.advance(seconds)
            self.probe.batch_ends()

    def longest_s(self) -> float:
        times = self.probe.device_times()
        assert times is not None
        assert times.step_s is not None
        return times.step_s.mean + times.step_s.std


@pytest.mark.parametrize("n", [40, 600])  # before and after the first aggregation
def test_device_steps_count_only_once_the_warm_up_is_over(n: int) -> None:
    run = Device()
    run.steps(4, 5.0)
    run.steps(n, 0.01)
    assert run.probe.stage_times() is not None
    assert run.longest_s() == pytest.approx(0.01, rel=0.01)


def test_device_steps_are_left_out_when_they_are_profiled() -> None:
    run = Device()
    run.steps(20, 0.01)
    run.probe.profiling(True)
    run.steps(20, 1.0)
    run.probe.profiling(False)
    run.steps(20, 0.01)
    assert run.longest_s() == pytest.approx(0.01, rel=0.01)


def test_device_steps_are_left_out_when_their_row_is() -> None:
    run = Device()
    for _ in range(5):
        run.steps(10, 0.01)
        run.steps(1, 1.0, left_out=True)
    run.steps(10, 0.01)
    assert run.longest_s() == pytest.approx(0.01, rel=0.01)
