"""One rank's part in the report about all ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from lightning_perf import PerfDoctor
from lightning_perf.probes.base import Probe
from lightning_perf.probes.probe_set import ProbeSet
from lightning_perf.probes.ranks.probe import RankProbe
from lightning_perf.records import NamedTime, StageTimes, combine_ranks
from lightning_perf.run import DoctorRun

from .synthetic import steady, summary


class FakeProbe(Probe):
    name = "ranks"
    is_closed = False

    def close(self) -> None:
        self.is_closed = True

    abandon = close


@pytest.mark.parametrize("probe", ["ranks", "steps", "setup"])
def test_nothing_stays_on_the_parameters_when_the_probe_is_switched_off(probe: str) -> None:
    probes, ranks = ProbeSet(), FakeProbe(None)  # type: ignore[arg-type]
    probes.add(ranks)
    probes.switch_off(probe, ValueError("planted"))
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


def test_rank_keeps_its_measurements_and_does_not_communicate_when_an_error_ends_it() -> None:
    probe = RankProbe(SimpleNamespace(world_size=3, global_rank=2, strategy=None))
    probe.end_alone(FakeLoop())
    assert [one.rank for one in probe.ranks.summaries] == [2]
    probe.ranks = combine_ranks((summary(0), summary(2)), 3)
    probe.end_alone(FakeLoop())
    assert [(one.rank, one.n_steps) for one in probe.ranks.summaries] == [(0, 10), (2, 100)]


class BrokenLive:
    def requests(self, _: Any) -> Any:
        raise ValueError("planted")

    def apply(self, *_: Any) -> None:
        raise AssertionError("nothing was asked for")


def test_every_rank_takes_part_in_the_broadcast_when_rank_0_fails_to_decide() -> None:
    sent: list[Any] = []
    strategy = SimpleNamespace(broadcast=lambda requests: sent.append(list(requests)) or requests)
    trainer = SimpleNamespace(is_global_zero=True, world_size=2, strategy=strategy)
    run = DoctorRun(PerfDoctor(), trainer, ProbeSet(), lambda: None)
    run.live = BrokenLive()
    run.apply_treatments(None)
    assert sent == [[]]


def test_reason_is_reported_when_waiting_is_unknown() -> None:
    strategy = SimpleNamespace(model=nn.Linear(1, 1))
    probe = RankProbe(SimpleNamespace(world_size=2, global_rank=0, strategy=strategy))
    assert "none was reached" in probe.reasons()["ranks"]
    probe.ranks = combine_ranks((summary(0),), 2)
    loop = SimpleNamespace(make_event=lambda: None, timeline=None)
    probe.loops_ready(SimpleNamespace(stage="fit", loop=loop, probes=ProbeSet()))
    assert "not at the end of backward" in probe.reasons()["ranks.summaries.waiting_s"]
