from __future__ import annotations

import math
from statistics import fmean

import msgspec
import pytest

from lightning_perf.history.entry import reduced
from lightning_perf.history.slower import (
    _grouped,
    _ratios,
    _steps,
    _typical,
    detectable_factor,
    explained_factor,
    like_runs,
    machine_factor,
    slower_times,
)
from lightning_perf.records import Block, Session

from .runs import run


def runs(n: int = 5, **kind: object) -> list[Session]:
    return [run(i, **kind) for i in range(1, n + 1)]


def slower(base: list[Session], session: Session) -> dict[str, float]:
    """Return the factor of each time that is longer."""
    return {one.name: one.factor for one in slower_times(base, session, 0.01)}


def test_longer_steps_and_longer_validations_are_distinguished() -> None:
    found = slower(runs(), run(9, slower=1.3))
    assert found["step"] == pytest.approx(1.3, rel=0.05)
    found = slower(runs(), run(9, validation_s=6.0))
    assert found == {"wall": pytest.approx(1.45, rel=0.1)}
    assert slower(runs(), run(9)) == {}


def test_times_per_sample_are_compared_if_the_batch_size_was_changed() -> None:
    smaller = run(9, loader={"batch_size": 16})
    assert slower(runs(), smaller)["step"] == pytest.approx(2.0, rel=0.05)
    assert slower(runs(), run(9, loader={"batch_size": 16}, slower=0.5)) == {}


def test_runs_of_different_length_are_compared_in_parts_of_equal_length() -> None:
    short, long = (reduced(run(i, n_epochs=n, steps_an_epoch=250)) for i, n in ((1, 1), (2, 4)))
    assert [each.steady.timeline[0].n_steps for each in (short, long) if each.steady is not None] == [4, 8]
    assert {each.part_length for each in _steps([short, long]) if each is not None} == {8}


@pytest.mark.parametrize(
    ("mean_s", "slowest_s", "expected_s"), [(0.06, 0.2, 0.04), (0.06, 0.1, 0.06), (1.125, 9.001, 1.125)]
)
def test_a_slow_step_is_left_out_of_its_part_unless_rounding_leaves_nothing(
    mean_s: float, slowest_s: float, expected_s: float
) -> None:
    usual = Block(first_step=0, n_steps=4, start_s=0.0, step_s=mean_s, max_step_s=slowest_s / 2, phases={})
    slow = Block(first_step=4, n_steps=4, start_s=0.0, step_s=mean_s, max_step_s=slowest_s, phases={})
    found = _typical(_grouped([usual, slow], 8))
    assert found is not None
    assert found.step_s == pytest.approx([expected_s])


def test_what_is_detectable_is_found() -> None:
    factor = detectable_factor(runs(), run(9), 0.01)
    assert factor is not None
    assert "step" in slower(runs(), run(9, slower=factor * 1.05))
    assert detectable_factor(runs(2), run(9), 0.01) is None


def with_speed(session: Session, factor: float) -> Session:
    assert session.steady is not None
    steady = msgspec.structs.replace(session.steady, fixed_python_s=2e-5 * factor)
    return msgspec.structs.replace(session, steady=steady)


SPEEDS = (1.0, 1.3, 0.9, 1.1, 1.2, 0.95)


def test_slower_machine_is_no_slower_training() -> None:
    base = [with_speed(run(i, slower=factor), factor) for i, factor in enumerate(SPEEDS)]
    assert slower(base, with_speed(run(9, slower=1.6), 1.6)) == {}
    found = slower(base, with_speed(run(9, slower=1.6), 1.2))
    assert found["step"] == pytest.approx(1.6 / 1.2, rel=0.06)


def test_speed_counts_once_the_last_runs_and_half_of_all_have_timed_the_machine() -> None:
    timed = [with_speed(run(i, slower=factor), factor) for i, factor in enumerate(SPEEDS)]
    untimed = [run(20 + i) for i in range(7)]
    new = with_speed(run(9, slower=1.6), 1.6)
    assert like_runs(untimed[:6] + timed, new) == timed
    for base in (untimed + timed, untimed[:4] + timed[:4], [*timed, untimed[0]]):
        assert like_runs(base, new) == base
        assert explained_factor(base, new, "step") == 1.0
    assert like_runs(timed, run(9)) == timed


def test_what_the_machine_explains_is_a_factor() -> None:
    timed = [with_speed(run(i, slower=factor), factor) for i, factor in enumerate(SPEEDS)]
    new = with_speed(run(9, slower=1.6), 1.6)
    mean = math.exp(fmean(math.log(each) for each in SPEEDS[-5:]))
    assert machine_factor(timed, new) == pytest.approx(1.6 / mean)
    assert explained_factor(timed, new, "step") == pytest.approx(1.6 / mean, rel=0.1)
    assert explained_factor(timed, new, "wall") == pytest.approx(1.6 / mean, rel=0.1)
    assert explained_factor(timed, run(9), "step") == 1.0
    assert machine_factor([run(1), *timed[-4:]], new) is None


def test_speeds_of_another_python_do_not_count() -> None:
    other = [with_speed(run(i, machine={"python": "3.13"}), 0.8) for i in range(6)]
    assert machine_factor(other, with_speed(run(9), 1.0)) is None
    assert slower(other, with_speed(run(9), 1.0)) == {}


def test_runs_without_steady_steps_do_not_count() -> None:
    short = run(9, n_epochs=1, steps_an_epoch=1)
    assert slower([*runs(2), short], run(10, slower=2.0)) == {}
    assert slower([*runs(3), short], run(10, slower=2.0))["step"] > 1.5


def on_changing_machine() -> list[Session]:
    """Return runs that differ by far more than a regression of 10 %, in all phases alike."""
    return [run(i, slower=factor, between=0.0) for i, factor in enumerate(SPEEDS)]


def test_a_longer_phase_is_found_by_the_other_phases_whatever_the_speed_of_the_machine() -> None:
    base = on_changing_machine()
    mean = math.exp(fmean(math.log(each) for each in SPEEDS[-5:]))
    for factor in (1.3, 1.02):
        new = run(9, slower=factor, between=0.0, more_s={"data_wait": 0.005 * factor})  # a tenth
        [found] = slower_times(base, new, 0.01)
        assert (found.name, found.phase) == ("step", "data_wait")
        assert found.factor == pytest.approx(1.1, rel=0.02)
        assert found.explained == pytest.approx(factor / mean, rel=0.06)
    assert slower_times(base, run(9, slower=1.3, between=0.0), 0.01) == []


def test_no_phase_is_longer_because_others_are_shorter() -> None:
    base = [run(i, between=0.0) for i in range(6)]
    assert slower(base, run(9, slower=0.5, phase="backward", between=0.0)) == {}


def test_a_phase_that_is_all_of_the_step_is_not_compared_with_others() -> None:
    block = Block(first_step=0, n_steps=8, start_s=0.0, step_s=0.1, max_step_s=0.1, phases={"forward": 0.1})
    assert _ratios([[block]], "forward") is None
    assert _ratios([], "forward") is None
    found = _ratios([[block]], "logging")
    assert found is not None
    assert found.step_s == [1.0]


def test_a_phase_is_not_longer_because_one_other_became_shorter() -> None:
    base = on_changing_machine()
    less = run(9, slower=1.5, between=0.0, more_s={"backward": -0.25 * 0.05})
    assert slower_times(base, less, 0.01) == []
