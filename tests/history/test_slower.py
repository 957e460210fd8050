from __future__ import annotations

import math
from statistics import fmean

import msgspec
import pytest

from benchmarks.comparison.simulated_sessions import STEP_S
from lightning_perf.history.entry import reduced
from lightning_perf.history.slower import (
    _grouped,
    _groups,
    _ratios,
    _typical,
    detectable_factor,
    explained_factor,
    like_runs,
    machine_factor,
    parts_of_alpha,
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
    assert {each.part_length for each in map(_typical, _groups([short, long])) if each is not None} == {8}


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
    [found] = slower_times(base, changed(1.3, data_wait=0.1), 0.01)
    assert (found.name, found.phase, found.has_slower_rest) == ("step", "data_wait", True)
    assert found.factor == pytest.approx(1.1, rel=0.01)
    assert found.explained == pytest.approx(1.3 / mean, rel=0.05)
    assert slower_times(base, changed(1.3), 0.01) == []


def test_a_step_is_longer_by_no_more_than_it_is_if_all_other_phases_are_shorter() -> None:
    [found] = slower_times(on_changing_machine(), changed(1.03, data_wait=0.1), 0.01)
    mean = math.exp(fmean(math.log(each) for each in SPEEDS[-5:]))
    assert (found.phase, found.explained, found.has_slower_rest) == ("data_wait", 1.0, False)
    assert found.factor == pytest.approx(1.1 * 1.03 / mean, rel=0.02)


@pytest.mark.parametrize(
    ("speed", "parts"),
    [
        (1.0, {"backward": -0.25}),
        (1.5, {"backward": -0.25}),  # forward follows the machine
        (1.1, {"forward": -0.2, "data_wait": 0.2}),  # the same time, spent elsewhere
        (1.1, {"data_wait": 0.25, "forward": 0.25, "optimizer": 0.25}),  # too many to be found by the others
    ],
)
def test_no_phase_is_named_unless_it_alone_grew_and_the_step_with_it(speed: float, parts: dict[str, float]) -> None:
    found = slower_times(on_changing_machine(), changed(speed, **parts), 0.01)
    assert [one for one in found if one.phase] == []


def changed(speed: float, **parts: float) -> Session:
    """Return a run in which phases take longer by a part of the step."""
    return run(9, slower=speed, between=0.0, more_s={name: part * speed * STEP_S for name, part in parts.items()})


def test_a_phase_is_compared_with_two_others_one_by_one() -> None:
    def shortened(session: Session, *names: str) -> Session:
        assert session.steady is not None
        phases = {name: phase for name, phase in session.steady.phases.items() if name in names}
        return msgspec.structs.replace(session, steady=msgspec.structs.replace(session.steady, phases=phases))

    base, new = on_changing_machine(), changed(1.3, data_wait=0.1)
    for names, n_found in ((("data_wait", "forward", "backward"), 1), (("data_wait", "backward"), 0)):
        found = slower_times([shortened(one, *names) for one in base], shortened(new, *names), 0.01)
        assert len(found) == n_found
    timed = [with_speed(one, speed) for one, speed in zip(base[:5], SPEEDS, strict=False)]  # too few for a fit
    for speed, n_found in ((1.3, 1), (9.0, 0)):
        found = slower_times(
            [shortened(one, *names) for one in timed[:4]], shortened(with_speed(new, speed), *names), 0.01
        )
        assert len(found) == n_found


def test_a_phase_is_not_compared_where_the_step_is_longer_by_more_than_chance() -> None:
    found = slower_times([run(i, between=0.001) for i in range(6)], changed(1.0, data_wait=0.2), 0.01)
    assert [(one.name, one.phase) for one in found] == [("step", ""), ("wall", "")]


def test_a_new_phase_is_found() -> None:
    [found] = slower_times(on_changing_machine(), changed(1.3, logging=0.1), 0.01)
    assert found.phase == "logging"


def test_a_longer_epoch_comes_before_a_longer_phase() -> None:
    new = run(9, slower=1.3, between=0.0, more_s={"data_wait": 0.1 * 1.3 * STEP_S}, validation_s=90.0)
    assert [one.name for one in slower_times(on_changing_machine(), new, 0.01)] == ["wall", "step"]


def test_what_starts_slowly_in_each_run_is_not_slower() -> None:
    base = [slow_start(run(i, n_epochs=10, between=0.01)) for i in range(6)]
    start = slow_start(run(9, n_epochs=1, steps_an_epoch=210))
    assert slower_times(base, start, 0.01) == []


def slow_start(session: Session) -> Session:
    """Return a session whose first 210 steps wait for data as long again as they compute."""
    assert session.steady is not None
    timeline = tuple(
        msgspec.structs.replace(
            each,
            step_s=1.5 * each.step_s,
            phases={**each.phases, "data_wait": each.phases["data_wait"] + each.step_s / 2},
        )
        if each.first_step < 210
        else each
        for each in session.steady.timeline
    )
    return msgspec.structs.replace(session, steady=msgspec.structs.replace(session.steady, timeline=timeline))


def test_all_compared_times_share_alpha() -> None:
    parts = parts_of_alpha(["step", "wall"], ["forward", "backward"])
    assert sum(parts.values()) == pytest.approx(1.0)
    assert parts["forward"] == pytest.approx(parts["wall"] / 2)
    assert parts_of_alpha(["step"], []) == {"step": 1.0}


def test_a_phase_that_is_all_of_the_step_is_not_compared_with_others() -> None:
    block = Block(first_step=0, n_steps=8, start_s=0.0, step_s=0.1, max_step_s=0.1, phases={"forward": 0.1})
    assert _ratios([[block]], "forward") is None
    assert _ratios([], "forward") is None
    found = _ratios([[block]], "logging")
    assert found is not None
    assert found.step_s == [1.0]
