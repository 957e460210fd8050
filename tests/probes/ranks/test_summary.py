"""One rank's summary: its own work without its waiting."""

from __future__ import annotations

import msgspec
import pytest

from lightning_perf.probes.ranks.probe import rank_summary
from lightning_perf.records import NamedTime

from .synthetic import Steps, steady


def broadcast(share: float) -> NamedTime:
    return NamedTime(
        name="sigterm_broadcast", kind="loop", hook="advance", phase="other", total_s=1.0, share=share, n_calls=1
    )


def test_on_a_host_waiting_is_what_backward_and_the_broadcast_take_beyond_the_own_part() -> None:
    steps = Steps()
    for _ in range(60):
        steps.step(own_s=0.003, waiting_s=0.007)
    times = steady(data_wait=0.001, forward=0.004, backward=0.010, other=0.005)
    found = rank_summary(0, times, [broadcast(0.2)], (), steps.watch)
    assert found.parts_s == pytest.approx({"data": 0.001, "compute": 0.007, "host": 0.001})
    assert found.waiting_s == pytest.approx(0.011)
    assert found.own_s + found.waiting_s == pytest.approx(found.step_s)


def test_waiting_between_epochs_is_no_part_of_a_step() -> None:
    steps = Steps()
    for _ in range(60):
        steps.step(own_s=0.003, waiting_s=0.007)
    found = rank_summary(0, steady(backward=0.010, other=0.001), [broadcast(0.9)], (), steps.watch)
    assert found.waiting_s == pytest.approx(0.008)
    assert found.own_s + found.waiting_s == pytest.approx(found.step_s)


def test_work_of_first_steps_of_epochs_is_divided_by_their_number_too() -> None:
    steps = Steps()
    for _ in range(60):
        steps.step(own_s=0.003, waiting_s=0.007)
    times = steady(data_wait=0.001, forward=0.004, backward=0.010, callbacks=0.005)
    short = msgspec.structs.replace(times, n_steps=50, n_first_steps=50)  # of 50 epochs with two batches
    host = NamedTime(
        name="Callback",
        kind="callback",
        hook="on_train_batch_end",
        phase="callbacks",
        total_s=0.5,
        share=0.25,
        n_calls=1,
    )
    found, expected = (rank_summary(0, each, [host, broadcast(0.1)], (), steps.watch) for each in (short, times))
    assert msgspec.structs.replace(found, n_steps=100) == expected


def test_step_that_was_cut_short_does_not_count_as_waiting_of_the_others() -> None:
    steps = Steps()
    for _ in range(60):
        steps.step(own_s=0.003, waiting_s=0.007)
    times = steady(forward=0.004, backward=0.010)
    cut = msgspec.structs.replace(times.phases["backward"], total_s=100 * 0.010 + 5.0)
    times = msgspec.structs.replace(times, phases={**times.phases, "backward": cut})
    assert rank_summary(0, times, (), (), steps.watch).waiting_s == pytest.approx(0.007)


def test_on_a_device_the_host_blocked_by_its_own_work_is_not_waiting_for_others() -> None:
    steps = Steps(device=True)
    for _ in range(60):
        steps.step(own_s=0.080, waiting_s=0.010, callback_s=0.1)
    # The host launches quickly, and is held by the device in the broadcast.
    times = steady(data_wait=0.005, forward=0.002, backward=0.003, other=0.090)
    found = rank_summary(0, times, [broadcast(0.89)], (), steps.watch)
    assert found.waiting_s == pytest.approx(0.010)
    assert found.parts_s == pytest.approx({"data": 0.005, "compute": 0.084, "host": 0.001})
    assert found.own_p50_s == pytest.approx(0.090)


def test_forward_is_not_a_ranks_own_where_the_strategy_waits_for_others_in_it() -> None:
    times = steady(data_wait=0.005, forward=0.020, backward=0.030, optimizer=0.002, callbacks=0.003)
    found = rank_summary(0, times, (), (), None, exchanges_in_forward=True)
    assert found.parts_s == pytest.approx({"data": 0.005, "host": 0.003})
    assert (found.own_s, found.own_p50_s) == (pytest.approx(0.008), pytest.approx(0.008))
    assert found.waiting_s is None
