"""The rounds of a comparison, with a clock that only the work advances."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext

import numpy as np
import pytest

from lightning_perf.probes.replay.compare import (
    HOPELESS_ROUNDS,
    HOPELESS_SLOWDOWN,
    MAX_ROUNDS,
    MIN_ROUNDS,
    MIN_TRIMMED_ROUNDS,
    DeviceWatch,
    HostWatch,
    compare,
    interval_of,
)
from tests.fakes import FakeClock, FakeDevice


class Work:
    """Takes the next of the times given for its side, the last one for ever."""

    def __init__(self, clock, as_is, treated, weight=1.0, device=None):
        self._times = {False: list(as_is), True: list(treated)}
        self._clock, self._device = clock, device
        self.weight = self.treated_weight = weight
        self.sides = []

    def run(self, is_treated, watch):
        self.sides.append(is_treated)
        times = self._times[is_treated]
        begin = watch.mark()
        spend = self._device.launch if self._device is not None else self._clock.advance
        spend(times.pop(0) if len(times) > 1 else times[0])
        return [(begin, watch.mark())]


def compared(work, clock, limit_s=10.0, treated=nullcontext):
    return compare(work, treated, HostWatch(clock), limit_s, clock)


def test_comparison_gives_the_ratio_when_times_do_not_vary():
    clock = FakeClock()
    found = compared([Work(clock, [0.02], [0.01]), Work(clock, [0.03], [0.03], weight=2.0)], clock)
    assert (found.before_s, found.after_s) == (pytest.approx(0.08), pytest.approx(0.07))
    assert found.speedup.low == found.speedup.high == pytest.approx(8 / 7)
    assert found.n_rounds == MIN_ROUNDS


def test_comparison_takes_turns_when_it_runs_rounds():
    clock = FakeClock()
    work = Work(clock, [0.02], [0.01])
    compared([work], clock, limit_s=1.0)
    assert work.sides == [False, True, False, True, True, False, False, True, True, False]


def test_untimed_pass_of_the_same_side_comes_first_when_there_is_time():
    clock = FakeClock()
    work = Work(clock, [0.02, 0.02, 0.03, 0.02], [0.01])
    found = compared([work], clock, limit_s=4 * MIN_TRIMMED_ROUNDS * 0.03 + 0.01)
    assert work.sides[:6] == [False, True, False, False, True, True]
    assert found.before_s == pytest.approx(0.02)


def test_comparison_leaves_the_first_run_out_when_it_takes_longer():
    clock = FakeClock()
    found = compared([Work(clock, [0.009, 0.002], [0.009, 0.001])], clock)
    assert found.speedup.value == pytest.approx(2)


def test_comparison_stops_early_when_the_treatment_is_hopeless():
    clock = FakeClock()
    work = [Work(clock, [0.02], [1.0]), Work(clock, [0.02], [1.0])]
    found = compared(work, clock)
    assert found.speedup.low == 0
    assert found.speedup.high < 1 / HOPELESS_SLOWDOWN
    assert work[1].sides == [False] * (1 + HOPELESS_ROUNDS)


def test_comparison_goes_on_when_one_pass_with_the_treatment_was_interrupted():
    clock = FakeClock()
    found = compared([Work(clock, [0.02], [1.0, 0.01]), Work(clock, [0.02], [0.01])], clock)
    assert found.speedup.low == found.speedup.value == pytest.approx(2)


def test_comparison_keeps_to_its_time_when_rounds_do_not_agree():
    clock = FakeClock()
    noisy = [0.01, 0.01, 0.05] * 100
    found = compared([Work(clock, noisy, noisy[1:])], clock, limit_s=1.0)
    assert clock.now < 1.2e9
    assert found.speedup.low < 1 < found.speedup.high
    assert found.n_rounds <= MAX_ROUNDS


def test_comparison_ends_when_it_has_an_interval_and_its_usual_time_is_over():
    clock = FakeClock()
    found = compare([Work(clock, [0.1], [0.05])], nullcontext, HostWatch(clock), 10.0, clock, enough_s=0.2)
    assert found.n_rounds == MIN_ROUNDS
    assert found.speedup.value == pytest.approx(2)


def test_comparison_takes_half_of_the_time_that_is_left_when_rounds_do_not_agree():
    clock = FakeClock()
    noisy = [0.01, 0.01, 0.05] * 100
    found = compare([Work(clock, noisy, noisy[1:])], nullcontext, HostWatch(clock), 1.0, clock, enough_s=0.2)
    assert found.speedup.low < 1 < found.speedup.high
    assert 0.6e9 <= clock.now < 0.8e9


def test_comparison_has_the_reason_when_there_is_no_time_for_a_pass():
    clock = FakeClock()
    found = compared([Work(clock, [1.0], [1.0]), Work(clock, [1.0], [1.0])], clock, limit_s=0.5)
    assert found.speedup is None
    assert "one pass over the operators takes longer than the 0.5 s left" in found.reason


def test_comparison_runs_nothing_when_no_time_is_left():
    clock = FakeClock()
    work = Work(clock, [0.1], [0.1])
    found = compared([work], clock, limit_s=-0.8)
    assert work.sides == []
    assert found.reason == "preparing the operators took all of the time"


def test_comparison_sets_the_treatment_for_whole_passes_when_it_is_a_setting():
    clock = FakeClock()
    inside = []

    @contextmanager
    def treated():
        inside.append("on")
        yield
        inside.append("off")

    work = Work(clock, [0.02], [0.01])
    compared([work], clock, treated=treated)
    assert inside == ["on", "off"] * (MIN_ROUNDS + 1)


def test_comparison_times_the_device_when_the_host_runs_ahead():
    clock = FakeClock()
    device = FakeDevice(clock)
    watch = DeviceWatch(device.event)
    begin = watch.mark()
    device.launch(0.25)
    end = watch.mark()
    clock.advance(0.3)
    assert watch.seconds(begin, end) == pytest.approx(0.25)


def test_interval_holds_one_outlier_off_when_there_are_many_rounds():
    assert interval_of([0.5] * 9 + [5.0]).high == pytest.approx(interval_of([0.5] * 10).high)


def test_interval_is_absent_when_there_are_too_few_rounds():
    assert interval_of([0.5] * (MIN_ROUNDS - 1)) is None


def test_comparison_ends_when_the_speedup_is_not_worth_it():
    clock = FakeClock()
    as_is, treated = [0.0102, *[0.0098, 0.0098, 0.0102, 0.0102] * 60], [0.01]
    long = compare([Work(clock, as_is, treated)], nullcontext, HostWatch(clock), 100.0, clock)
    short = compare([Work(clock, as_is, treated)], nullcontext, HostWatch(clock), 100.0, clock, least_speedup=1.2)
    assert short.n_rounds == MIN_ROUNDS < long.n_rounds
    assert short.speedup.high < 1.2


NOISES = {
    "normal": lambda rng, n: rng.normal(0, 0.05, n),
    "heavy-tailed": lambda rng, n: rng.laplace(0, 0.1, n),
    "interrupted": lambda rng, n: (
        rng.normal(0, 0.05, n)
        + np.where(rng.random(n) < 0.15, rng.exponential(0.6, n), 0)
        - np.where(rng.random(n) < 0.15, rng.exponential(0.6, n), 0)
    ),
}


@pytest.mark.parametrize("ratio", [1.0, 1.35])
@pytest.mark.parametrize("noise", NOISES)
def test_interval_holds_the_ratio_when_rounds_end_as_soon_as_it_decides(noise, ratio):
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(300):
        clock = FakeClock()
        n = 2 * (MAX_ROUNDS + 2)
        after = 0.02 * np.ones(n)
        before = after * ratio * np.exp(NOISES[noise](rng, n))
        work = Work(clock, before.tolist(), after.tolist())
        limit_s = rng.uniform(0.25, 3.0)
        found = compare([work], nullcontext, HostWatch(clock), limit_s, clock, least_speedup=1.03).speedup
        held += found is None or found.low <= ratio <= found.high
    assert held >= 0.95 * 300
