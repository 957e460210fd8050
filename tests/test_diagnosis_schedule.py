"""When PerfDoctor diagnoses within an epoch."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from lightning_perf.diagnosis_schedule import MAX_CHECK_EVERY, DiagnosisSchedule
from tests.fakes import FakeClock


class Training:
    """A training on a fake clock whose schedule is asked as ``ProbeSet`` does, and whose diagnoses take time.

    Attributes:
        diagnoses: Seconds since the first step at which a diagnosis began, and steps that were made by then.
        n_checks: Steps that the schedule observed.
    """

    def __init__(self, took_s: float = 0.01, n_warmup: int = 5) -> None:
        self.clock = FakeClock()
        self.diagnoses: list[tuple[float, int]] = []
        self.n_checks = 0
        self.step_s = 0.0
        self._took_s, self._n_warmup = took_s, n_warmup
        self.main = SimpleNamespace(
            n_steps=0, recent_median_ns=lambda: self.step_s * 1e9, stage_times=self._stage_times
        )
        self.is_profiling = False
        self.on_record_end: Any = None
        loop: Any = self
        self.schedule = DiagnosisSchedule(loop, self.clock)
        self._start_ns: int | None = None

    def _stage_times(self) -> Any:
        return SimpleNamespace(n_steps=self.main.n_steps - self._n_warmup)

    def steps(self, n: int, step_s: float) -> Training:
        """Make steps."""
        self.step_s = step_s
        for _ in range(n):
            is_observed = self.schedule.next_step <= self.main.n_steps
            self.clock.advance(step_s)
            if self._start_ns is None:
                self._start_ns = self.clock()
            if is_observed:
                self.n_checks += 1
                self.schedule.step_ends()
            self.main.n_steps += 1
            if self.schedule.is_due:
                self.diagnoses.append(((self.clock() - self._start_ns) / 1e9, self.main.n_steps))
                self.clock.advance(self._took_s)
                self.schedule.diagnosed(round(self._took_s * 1e9))
        return self

    def times_s(self) -> list[float]:
        return [at_s for at_s, _ in self.diagnoses]


def test_first_diagnosis_comes_after_ten_seconds_when_steps_are_short() -> None:
    (at_s, _), *_ = Training().steps(3000, 0.01).diagnoses
    assert 10 <= at_s < 11.5


def test_first_diagnosis_waits_for_two_hundred_steady_steps() -> None:
    (at_s, n_steps), *_ = Training(n_warmup=12).steps(400, 0.1).diagnoses
    assert 212 <= n_steps <= 225
    assert 21 <= at_s < 23


def test_first_diagnosis_comes_after_a_minute_when_steps_are_long() -> None:
    (at_s, _), *_ = Training().steps(200, 1.0).diagnoses
    assert at_s == pytest.approx(60, abs=1)


def test_first_diagnosis_waits_for_twenty_steps_when_they_take_minutes() -> None:
    assert Training().steps(21, 120.0).diagnoses[0][1] == 20


def test_diagnoses_become_rarer_up_to_five_minutes() -> None:
    times_s = Training().steps(60_000, 0.02).times_s()
    gaps_s = [later - before for before, later in itertools.pairwise(times_s)]
    assert gaps_s[:4] == pytest.approx([times_s[0] * 2**n for n in range(4)], rel=0.15)
    assert gaps_s[-1] == pytest.approx(300, abs=2)
    assert max(gaps_s) <= 302


@pytest.mark.parametrize("step_s", [0.01, 0.5, 3.0])
def test_no_diagnosis_takes_more_than_one_percent_of_the_time_since_the_last(step_s: float) -> None:
    times_s = Training(took_s=5.0).steps(round(1700 / step_s), step_s).times_s()
    assert len(times_s) > 2
    assert all(later - before >= 500 for before, later in itertools.pairwise(times_s))


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_diagnosis_comes_soon_when_the_step_time_has_changed(factor: float) -> None:
    training = Training().steps(6000, 0.1)
    before_s = training.times_s()
    training.steps(round(20 / (0.1 * factor)), 0.1 * factor)
    assert len(training.times_s()) == len(before_s) + 1


def test_short_disturbance_causes_no_diagnosis() -> None:
    training = Training().steps(6000, 0.1)
    before_s = training.times_s()
    training.steps(6, 0.2).steps(200, 0.1)
    assert training.times_s() == before_s


def test_diagnosis_of_an_epoch_counts_as_the_last_one() -> None:
    training = Training().steps(9000, 0.01)
    before_s = training.times_s()
    training.schedule.diagnosed()
    training.steps(8000, 0.01)
    assert training.times_s() == before_s


def test_diagnosis_waits_until_a_profiler_window_and_a_sampled_step_are_over() -> None:
    training = Training()
    training.is_profiling = True
    training.steps(3000, 0.01)
    training.is_profiling, training.on_record_end = False, lambda: None
    assert training.steps(100, 0.01).diagnoses == []
    training.on_record_end = None
    assert len(training.steps(1, 0.01).diagnoses) == 1


def test_few_steps_are_observed() -> None:
    assert Training().steps(30_000, 0.001).n_checks <= 30_000 / MAX_CHECK_EVERY + 20
    assert Training().steps(1000, 0.2).n_checks <= 220


def test_slower_steps_are_noticed_when_steps_were_short() -> None:
    training = Training().steps(20_000, 0.001)
    before_s = training.times_s()
    training.steps(100, 3.0)
    assert training.times_s()[len(before_s)] <= 20 + (MAX_CHECK_EVERY + 1) * 3
