"""Phases by the clock of a real device: plausible, without waiting, and without an event in a captured graph."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lightning_perf.probes.clock import FIRST_SAMPLED_STEP, device_clock
from lightning_perf.probes.timeline.device_phases import DevicePhases
from tests.probes.timeline.test_device_phases import Loop

from .record_traces import train
from .trainings import TRAININGS

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]


class CudaLoop(Loop):
    """The loop of the tests with fakes, whose steps a real device times."""

    def __init__(self) -> None:
        super().__init__()
        clock, reason = device_clock(torch.device("cuda:0"), self._raise)
        assert clock is not None, reason
        self.clock = clock
        self.probe = DevicePhases(self.run, clock)


def test_phases_add_up_to_the_device_step_when_the_device_is_busy(tmp_path: Path) -> None:
    session = train(TRAININGS["compute-bound"], tmp_path)
    assert session.steady is not None
    device = session.steady.device
    assert device is not None
    assert device.n_phases_sampled >= 1
    assert device.phases["backward"] > device.phases["forward"] > 0
    assert 0.5 * device.step_s.p50 <= sum(device.phases.values()) <= 1.2 * device.step_s.p50
    assert not [off for off in session.probes_off if off.probe == "device_phases"]


def test_neither_marking_nor_reading_waits_for_the_device() -> None:
    loop = CudaLoop()
    loop.step(FIRST_SAMPLED_STEP)
    done = torch.cuda.Event()
    torch.cuda._sleep(2_000_000_000)
    done.record()
    loop.step()
    assert loop.device_times().phases == {}
    assert not done.query()
    torch.cuda.synchronize()
    assert set(loop.device_times().phases) == {"forward", "backward", "optimizer"}
    assert loop.errors == []


def test_capture_of_a_graph_within_a_sampled_step_is_undisturbed() -> None:
    loop, graph = CudaLoop(), torch.cuda.CUDAGraph()
    total = torch.zeros((), device="cuda")
    loop.step(FIRST_SAMPLED_STEP)
    run_step = loop.pass_through

    def captured(steps_optimizer: bool) -> None:
        with loop.parts["training_step"]:
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                run_step(steps_optimizer)
                total.add_(1)

    loop.pass_through = captured  # type: ignore[method-assign]
    loop.step()
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert total.item() == 3
    assert loop.device_times().phases == {}
    assert loop.errors == []
