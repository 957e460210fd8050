"""What a rank does itself, and all ranks together by way of a store."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from lightning_perf.probes.clock import FakeClock, FakeDevice
from lightning_perf.probes.ranks import BackwardWatch, Exchange
from lightning_perf.probes.spans import Span, Timeline
from lightning_perf.records import RankSummary


def raises(error: Exception) -> None:
    raise error


class Delayed(torch.autograd.Function):
    """Lets the clock run in backward, before the gradient is there."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, wait: Any) -> torch.Tensor:
        ctx.wait = wait
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        ctx.wait()
        return gradient, None


class Steps:
    """Backward passes whose own part and whose waiting are told in seconds."""

    def __init__(self, device: bool = False) -> None:
        self.clock = FakeClock()
        self.device = FakeDevice(self.clock) if device else None
        self.timeline = Timeline(self.clock, raises)
        self.span = Span(self.timeline, "backward")
        self.layer, self.spare = nn.Linear(2, 1), nn.Linear(1, 1)
        parameters = [*self.layer.parameters(), *self.spare.parameters()]
        make_event = self.device.event if self.device is not None else None
        self.watch = BackwardWatch(parameters, self.timeline, make_event)

    def work(self, seconds: float) -> None:
        if self.device is not None:
            self.device.launch(seconds)
        else:
            self.clock.advance(seconds)

    def step(self, own_s: float, waiting_s: float, callback_s: float = 0.0, uses_spare: bool = False) -> bool:
        self.timeline.phase_ns[:] = [0] * len(self.timeline.phase_ns)
        is_sampled = self.watch.batch_begins()
        loss = Delayed.apply(self.layer(torch.ones(1, 2)), lambda: self.work(own_s)).sum()
        if uses_spare:
            loss = loss + self.spare(torch.ones(1, 1)).sum()
        self.watch.before_backward()
        with self.span:
            loss.backward()
            self.work(waiting_s)
        self.clock.advance(callback_s)
        self.watch.after_backward()
        return is_sampled


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
        steps.step(own_s=1.0, waiting_s=0.0)  # the host's clock stands still
    assert steps.watch.own_s() is None
    steps.clock.advance(1000)
    assert steps.watch.own_s() == pytest.approx(1.0)


def test_parameters_without_a_gradient_are_counted_where_no_step_gave_them_one() -> None:
    steps = Steps()
    for _ in range(30):
        steps.step(0.001, 0.0)
    assert steps.watch.n_unused == 2
    for _ in range(30):
        steps.step(0.001, 0.0, uses_spare=True)
    assert steps.watch.n_unused == 0


def test_nothing_is_left_on_the_parameters() -> None:
    steps = Steps()
    while not steps.watch.batch_begins():
        pass
    assert steps.layer.weight._post_accumulate_grad_hooks
    steps.watch.stop()
    assert not steps.layer.weight._post_accumulate_grad_hooks
    steps.watch.after_backward()
    assert steps.watch.own_s() is None


class FakeStore:
    """A store that waits for nobody, with the odd rank that never reports."""

    def __init__(self, is_extended: bool = True) -> None:
        self.values: dict[str, bytes] = {}
        self.is_extended = is_extended

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.values[key]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        assert self.is_extended
        return [self.values[key] for key in keys]

    def has_extended_api(self) -> bool:
        return self.is_extended

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def delete_key(self, key: str) -> bool:
        return self.values.pop(key, None) is not None


def summary(rank: int, step_s: float = 0.01) -> RankSummary:
    return RankSummary(rank=rank, node="a", n_steps=10, step_s=step_s, own_s=step_s / 2, wait_share=rank / 10)


class World:
    """Ranks over one fake store and clock; sleeping lets time pass and late ranks arrive."""

    def __init__(self, n_ranks: int, is_extended: bool = True) -> None:
        self.store = FakeStore(is_extended)
        self.now_s = 0.0
        self.arrivals: dict[float, int] = {}
        self.ranks = [Exchange(self.store, rank, n_ranks, lambda: self.now_s, self.sleep) for rank in range(n_ranks)]

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        for when in [when for when in self.arrivals if when <= self.now_s]:
            rank = self.arrivals.pop(when)
            self.ranks[rank].share(summary(rank), 1.0)


@pytest.mark.parametrize("is_extended", [True, False])
def test_first_rank_knows_all_and_the_others_themselves(is_extended: bool) -> None:
    world = World(3, is_extended)
    alone = [world.ranks[rank].share(summary(rank, 0.01 * (rank + 1)), 1.0) for rank in (2, 1)]
    assert [[one.rank for one in ranks.summaries] for ranks in alone] == [[2], [1]]
    together = world.ranks[0].share(summary(0), 1.0)
    assert [one.rank for one in together.summaries] == [0, 1, 2]
    assert together.step_max_s == pytest.approx(0.03)
    assert together.step_mean_s == pytest.approx(0.02)
    assert together.data_wait_share_max == pytest.approx(0.2)
    assert together.missing == ()
    assert world.now_s == 0


def test_late_rank_is_waited_for_within_the_limit() -> None:
    world = World(2)
    world.arrivals = {0.5: 1}
    assert len(world.ranks[0].share(summary(0), 1.0).summaries) == 2
    assert world.now_s == pytest.approx(0.5, abs=0.01)


def test_rank_that_does_not_come_is_told_and_holds_nobody_up() -> None:
    world = World(3)
    world.ranks[1].share(summary(1), 1.0)
    together = world.ranks[0].share(summary(0), 1.0)
    assert [one.rank for one in together.summaries] == [0, 1]
    assert [(one.rank, one.reason) for one in together.missing] == [(2, "it did not report within 1 s")]
    assert world.now_s == pytest.approx(1.0, abs=0.01)


def test_earlier_figures_stand_in_when_a_rank_falls_silent() -> None:
    world = World(2)
    world.ranks[1].share(summary(1, 0.05), 1.0)
    world.ranks[0].share(summary(0), 1.0)
    together = world.ranks[0].share(summary(0), 1.0)
    assert together.step_max_s == pytest.approx(0.05)
    assert "earlier" in together.missing[0].reason


def test_rank_that_measured_nothing_says_so() -> None:
    world = World(2)
    assert world.ranks[1].share(None, 1.0) is None
    together = world.ranks[0].share(summary(0), 1.0)
    assert [one.reason for one in together.missing] == ["it measured nothing"]
    assert world.now_s == 0


def test_rank_that_tells_nonsense_is_told_of() -> None:
    world = World(2)
    world.store.set("0/1", "{")
    together = world.ranks[0].share(summary(0), 1.0)
    assert together.missing[0].reason.startswith("it told what cannot be read")


def test_store_does_not_grow_with_the_reports() -> None:
    world = World(2)
    for _ in range(10):
        world.ranks[1].share(summary(1), 1.0)
        world.ranks[0].share(summary(0), 1.0)
    assert len(world.store.values) == 2


def test_message_of_a_rank_is_small() -> None:
    assert len(msgspec.json.encode(summary(1000))) < 2048
