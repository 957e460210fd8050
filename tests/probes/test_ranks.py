"""What a rank does itself, and all ranks together by way of a store."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from lightning_perf import PerfDoctor
from lightning_perf.probes.clock import FakeClock, FakeDevice
from lightning_perf.probes.ranks import BackwardWatch, Exchange, RankProbe, rank_summary
from lightning_perf.probes.spans import Span, Timeline
from lightning_perf.records import Distribution, NamedTime, PhaseTime, RankSummary, StageTimes, together


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

    def backward(self, own_s: float, waiting_s: float, uses_spare: bool = False) -> None:
        loss = Delayed.apply(self.layer(torch.ones(1, 2)), lambda: self.work(own_s)).sum()
        if uses_spare:
            loss = loss + self.spare(torch.ones(1, 1)).sum()
        self.watch.before_backward()
        with self.span:
            loss.backward()
            self.work(waiting_s)

    def step(
        self, own_s: float, waiting_s: float, callback_s: float = 0.0, uses_spare: bool = False, n_backwards: int = 1
    ) -> bool:
        self.timeline.phase_ns[:] = [0] * len(self.timeline.phase_ns)
        is_sampled = self.watch.batch_begins()
        for _ in range(n_backwards):
            self.backward(own_s, waiting_s, uses_spare)
            if self.device is None:
                self.clock.advance(callback_s)
            self.watch.after_backward()
            if self.device is not None:
                self.clock.advance(callback_s)
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


def test_parameters_may_be_frozen_and_thawed_during_the_run() -> None:
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


def test_hooks_go_with_the_step_where_nobody_tells_that_backward_is_over() -> None:
    steps = Steps()
    while not steps.watch.batch_begins():
        pass
    steps.layer(torch.ones(1, 2)).sum().backward()
    assert not steps.watch.batch_begins()
    assert not steps.layer.weight._post_accumulate_grad_hooks
    assert steps.watch.own_s() is None


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
    assert len(world.store.values) == 4  # the last two rounds


def test_message_of_a_rank_is_small() -> None:
    assert len(msgspec.json.encode(summary(1000))) < 2048


def steady(**phases_s: float) -> StageTimes:
    """A hundred like steps, which take so many seconds of each phase."""
    step_s = sum(phases_s.values())
    spread = Distribution(p50=step_s, p95=step_s, p99=step_s, mean=step_s, std=0.0)
    phases = {name: PhaseTime(total_s=100 * s, share=s / step_s, p50_s=s, p95_s=s) for name, s in phases_s.items()}
    return StageTimes(
        n_steps=100, n_warmup_steps=0, span_s=100 * step_s, step_s=spread, samples_per_s=None, phases=phases
    )


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


class FakeProbe:
    is_closed = False

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("probe", ["ranks", "steps", "setup"])
def test_nothing_stays_on_the_parameters_when_the_probe_is_switched_off(probe: str) -> None:
    doctor = PerfDoctor()
    doctor._ranks = ranks = FakeProbe()
    doctor._switch_off(probe, ValueError("planted"))
    assert ranks.is_closed


class FakeLoop:
    def __init__(self) -> None:
        self.main = self

    def stage_times(self) -> StageTimes:
        return steady(forward=0.004, backward=0.010)

    def named(self) -> tuple[NamedTime, ...]:
        return ()

    def epochs_so_far(self) -> tuple[Any, ...]:
        return ()


def test_rank_that_an_error_ends_keeps_what_it_measured_and_asks_nobody() -> None:
    probe = RankProbe(SimpleNamespace(world_size=3, global_rank=2, strategy=None))
    probe.end_alone(FakeLoop())
    assert [one.rank for one in probe.ranks.summaries] == [2]
    probe.ranks = together((summary(0), summary(2)), 3)
    probe.end_alone(FakeLoop())
    assert [(one.rank, one.n_steps) for one in probe.ranks.summaries] == [(0, 10), (2, 100)]


class BrokenLive:
    def requests(self, _: Any) -> Any:
        raise ValueError("planted")

    def apply(self, *_: Any) -> None:
        raise AssertionError("nothing was asked for")


def test_every_rank_takes_part_in_the_broadcast_when_the_first_cannot_tell_what_to_apply() -> None:
    sent: list[Any] = []
    strategy = SimpleNamespace(broadcast=lambda requests: sent.append(list(requests)) or requests)
    doctor = PerfDoctor()
    doctor._live = BrokenLive()
    doctor.on_train_epoch_start(SimpleNamespace(is_global_zero=True, world_size=2, strategy=strategy), None)
    assert sent == [[]]


def test_reason_is_told_when_waiting_is_not_known() -> None:
    strategy = SimpleNamespace(model=nn.Linear(1, 1))
    probe = RankProbe(SimpleNamespace(world_size=2, global_rank=0, strategy=strategy))
    assert "none was reached" in probe.reasons()["ranks"]
    probe.ranks = together((summary(0),), 2)
    probe.loops_ready(SimpleNamespace(main=SimpleNamespace(device_clock=None), timeline=None))
    assert "not at the end of backward" in probe.reasons()["ranks.summaries.waiting_s"]
