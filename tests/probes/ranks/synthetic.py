"""Backward passes and times of a synthetic rank."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lightning_perf.probes.ranks.backward import BackwardWatch
from lightning_perf.probes.timeline.spans import Span, Timeline
from lightning_perf.records import Distribution, PhaseTime, RankSummary, StageTimes
from tests.fakes import FakeClock, FakeDevice


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
    """Return backward passes with own time and waiting in seconds."""

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


def summary(rank: int, step_s: float = 0.01) -> RankSummary:
    return RankSummary(rank=rank, node="a", n_steps=10, step_s=step_s, own_s=step_s / 2, wait_share=rank / 10)


def steady(**phases_s: float) -> StageTimes:
    """A hundred like steps, which take so many seconds of each phase."""
    step_s = sum(phases_s.values())
    spread = Distribution(p50=step_s, p95=step_s, p99=step_s, mean=step_s, std=0.0)
    phases = {name: PhaseTime(total_s=100 * s, share=s / step_s, p50_s=s, p95_s=s) for name, s in phases_s.items()}
    return StageTimes(
        n_steps=100, n_warmup_steps=0, span_s=100 * step_s, step_s=spread, samples_per_s=None, phases=phases
    )
