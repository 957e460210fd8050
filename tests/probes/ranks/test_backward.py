"""What a rank waits for others inside backward, on a host's clock and a device's."""

from __future__ import annotations

import pytest
import torch

from .synthetic import Steps


@pytest.mark.parametrize("device", [False, True])
def test_own_part_ends_with_the_last_gradient(device: bool) -> None:
    steps = Steps(device)
    sampled = []
    for _ in range(200):
        sampled.append(steps.step(own_s=0.003, waiting_s=0.007, callback_s=0.1))
    assert steps.watch.own_s() == pytest.approx(0.003)
    assert 10 <= sum(sampled) <= 30
    assert not any(sampled[:10])


def test_a_device_that_is_behind_is_not_waited_for() -> None:
    steps = Steps(device=True)
    for _ in range(40):
        steps.step(own_s=1.0, waiting_s=0.0)  # the host clock does not move
    assert steps.watch.own_s() is None
    steps.clock.advance(1000)
    assert steps.watch.own_s() == pytest.approx(1.0)


@pytest.mark.parametrize("device", [False, True])
def test_backwards_of_one_step_are_added_up(device: bool) -> None:
    steps = Steps(device)
    for _ in range(60):
        steps.step(own_s=0.003, waiting_s=0.007, callback_s=0.1, n_backwards=3)
    assert steps.watch.own_s() == pytest.approx(0.009)
    if device:
        assert steps.watch.waiting_s() == pytest.approx(0.021)


def test_broadcast_that_a_device_waits_in_counts_as_waiting_and_its_own_work_before_it_does_not() -> None:
    steps = Steps(device=True)
    for _ in range(60):
        steps.work(0.5)  # what is left of the step before
        steps.watch.broadcast_begins()
        steps.work(0.011)
        steps.clock.advance(1.0)  # the host waits for both
        steps.watch.broadcast_ends()
        steps.step(own_s=0.003, waiting_s=0.007, callback_s=0.1)
    # The mark behind the broadcast is made once the host goes on: 1.0 s after the other's making.
    assert steps.watch.waiting_s() == pytest.approx(0.5 + 0.007)


def test_most_parameters_without_a_gradient_count() -> None:
    steps = Steps()
    for _ in range(30):
        steps.step(0.001, 0.0, uses_spare=True)
    assert steps.watch.n_unused == 0
    for _ in range(30):
        steps.step(0.001, 0.0)
    for _ in range(30):
        steps.step(0.001, 0.0, uses_spare=True)
    assert steps.watch.n_unused == 2


def test_parameters_may_be_frozen_and_unfrozen_during_the_run() -> None:
    steps = Steps()
    steps.spare.requires_grad_(False)
    for _ in range(30):
        steps.step(0.001, 0.0)
    assert steps.watch.n_unused == 0
    steps.spare.requires_grad_(True)
    steps.layer.weight.requires_grad_(False)
    n = steps.watch.n
    for _ in range(30):
        steps.step(0.001, 0.0)
    assert steps.watch.n > n
    assert steps.watch.n_unused == 2


def test_error_of_a_clock_does_not_reach_the_users_backward() -> None:
    steps = Steps()
    while not steps.watch.batch_begins():
        pass
    steps.watch.before_backward()

    def broken() -> int:
        raise OSError("no clock")

    steps.timeline.now_ns = broken
    steps.layer(torch.ones(1, 2)).sum().backward()
    assert steps.layer.weight.grad is not None
    with pytest.raises(OSError, match="no clock"):
        steps.watch.after_backward()
    assert not steps.layer.weight._post_accumulate_grad_hooks


def test_hooks_are_removed_after_the_step_when_backward_does_not_announce_its_end() -> None:
    steps = Steps()
    while not steps.watch.batch_begins():
        pass
    steps.layer(torch.ones(1, 2)).sum().backward()
    assert not steps.watch.batch_begins()
    assert not steps.layer.weight._post_accumulate_grad_hooks
    assert steps.watch.own_s() is None


@pytest.mark.parametrize("device", [False, True])
def test_backward_that_is_not_announced_does_not_fail_an_announced_one_after_it(device: bool) -> None:
    steps = Steps(device)
    while not steps.watch.batch_begins():
        pass
    steps.layer(torch.ones(1, 2)).sum().backward()
    steps.backward(own_s=0.003, waiting_s=0.007)
    steps.watch.after_backward()
    steps.watch.batch_begins()
    steps.clock.advance(1.0)
    assert steps.watch.own_s() == pytest.approx(0.003)


def test_nothing_is_left_on_the_parameters() -> None:
    steps = Steps()
    while not steps.watch.batch_begins():
        pass
    assert steps.layer.weight._post_accumulate_grad_hooks
    steps.watch.stop()
    assert not steps.layer.weight._post_accumulate_grad_hooks
    steps.watch.after_backward()
    assert steps.watch.own_s() is None
