from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader

from lightning_perf import PerfDoctor
from lightning_perf.probes.clock import _MANY_STEPS, _N_FIRST_SAMPLES, FEW_STEPS, FIRST_SAMPLED_STEP, DeviceClock
from lightning_perf.probes.timeline import steps
from lightning_perf.probes.timeline.action_spans import ActionSpans
from lightning_perf.probes.timeline.device_phases import _MAX_MARKS, DevicePhases
from lightning_perf.probes.timeline.spans import Timeline
from lightning_perf.records import DeviceTimes, Session
from tests.fakes import FakeClock, FakeDevice, FakeEvent
from tests.reports.sessions import ddp


class Loop(ActionSpans):
    """A training loop that launches work on a device that runs by itself."""

    def __init__(self, forward_s: float = 0.02, backward_s: float = 0.05, optimizer_s: float = 0.003) -> None:
        self.host = FakeClock()
        self.device = FakeDevice(self.host)
        super().__init__(None, None, None, Timeline(self.host, self._raise))
        self.main: Any = SimpleNamespace(n_steps=0, is_left_out=False)
        self.is_profiling = self.is_capturing = False
        self.errors: list[Exception] = []
        self.n_events = 0
        self.clock = DeviceClock(self.event, "fake", self._raise, lambda: self.is_capturing)
        probes = SimpleNamespace(switch_off=lambda name, error: self.errors.append(error))
        self.run: Any = SimpleNamespace(loop=self, now_ns=self.host, probes=probes)
        self.probe = DevicePhases(self.run, self.clock)
        self.times_s = (forward_s, backward_s, optimizer_s)
        self.between: Callable[[str], None] = lambda _: None
        self.parts = {
            name: self._span(phase, name, "loop", "")
            for name, phase in (
                ("optimizer_step", "optimizer"),
                ("training_step", "forward"),
                ("zero_grad", "optimizer"),
                ("backward", "backward"),
            )
        }

    @staticmethod
    def _raise(error: Exception) -> None:
        raise error

    def event(self) -> FakeEvent:
        self.n_events += 1
        return self.device.event()

    def work(self, part: str, device_s: float) -> None:
        with self.parts[part]:
            self.host.advance(0.001)
            self.device.launch(device_s)
            self.between(part)

    def step(self, n: int = 1, steps_optimizer: bool = True) -> None:
        """Run steps as Lightning does: the optimizer's closure runs forward and backward."""
        for _ in range(n):
            self.host.advance(0.001)  # the fetch
            self.device.launch(0.004)  # the copy of the batch, which is in no phase
            if self.probe.next_step <= self.main.n_steps:
                self.probe.step_begins(None)
                self.pass_through(steps_optimizer)
                self.probe.step_ends()
            else:
                self.pass_through(steps_optimizer)
            self.main.n_steps += 1

    def pass_through(self, steps_optimizer: bool) -> None:
        forward_s, backward_s, optimizer_s = self.times_s
        if not steps_optimizer:
            self.work("training_step", forward_s)
            self.work("backward", backward_s)
            return
        with self.parts["optimizer_step"]:
            self.work("training_step", forward_s)
            self.work("zero_grad", 0.0005)
            self.work("backward", backward_s)
            self.device.launch(optimizer_s)

    def drain(self) -> None:
        """Let the device do everything that was launched."""
        self.host.now = max(self.host.now, self.device.free_at_ns)

    def device_times(self) -> DeviceTimes:
        session = msgspec.structs.replace(ddp(), steady=without_phases())
        steady = {"steady": session.steady, **self.probe.part(session)}["steady"]
        return steady.device


def without_phases() -> Any:
    steady = ddp().steady
    device = msgspec.structs.replace(steady.device, phases={}, n_phases_sampled=0)
    return msgspec.structs.replace(steady, device=device)


def test_phases_are_those_of_the_device_when_the_host_runs_ahead() -> None:
    loop = Loop()
    loop.step(FIRST_SAMPLED_STEP + 1)
    loop.drain()
    times = loop.device_times()
    assert times.phases == {
        "forward": pytest.approx(0.02),
        "backward": pytest.approx(0.05),
        "optimizer": pytest.approx(0.0035),
    }
    assert times.n_phases_sampled == 1
    assert loop.probe.reasons() == {}


def test_idle_time_of_the_device_belongs_to_the_phase_when_the_host_is_slow() -> None:
    loop = Loop(forward_s=0.01, backward_s=0.01, optimizer_s=0.0)
    loop.between = lambda part: loop.host.advance(0.2)
    loop.step(FIRST_SAMPLED_STEP + 1)
    loop.drain()
    phases = loop.device_times().phases
    assert phases["backward"] == pytest.approx(0.201)
    assert phases["forward"] == pytest.approx(0.201 - 0.004)  # the device has to copy the batch first


def test_nothing_is_read_until_the_device_has_passed_the_events() -> None:
    loop = Loop()
    loop.step(FIRST_SAMPLED_STEP + 1)
    assert loop.device_times().phases == {}
    assert list(loop.probe.reasons()) == ["steady.device.phases"]
    loop.drain()
    assert loop.device_times().n_phases_sampled == 1


def test_no_sample_is_taken_while_the_last_one_is_unresolved() -> None:
    loop, sampled = Loop(), set()
    loop.between = lambda part: sampled.add(loop.main.n_steps) if loop.timeline.phase_listener else None
    loop.device.launch(1e6)
    loop.step(FIRST_SAMPLED_STEP + 5 * FEW_STEPS)
    assert sampled == {FIRST_SAMPLED_STEP}
    loop.drain()
    assert loop.device_times().n_phases_sampled == 1


def test_events_are_reused_and_samples_become_rarer() -> None:
    loop = Loop()
    sampled = []
    loop.between = lambda part: sampled.append(loop.main.n_steps) if loop.timeline.phase_listener else None
    for _ in range(FIRST_SAMPLED_STEP + (_N_FIRST_SAMPLES + 2) * FEW_STEPS + 3 * _MANY_STEPS):
        loop.step()
        loop.drain()
    distances = {b - a for a, b in pairwise(sampled)}
    assert distances == {0, FEW_STEPS, _MANY_STEPS}
    assert sampled[0] == FIRST_SAMPLED_STEP
    assert loop.n_events == 6


def test_phase_counts_as_nothing_in_steps_without_it() -> None:
    loop = Loop()
    for index in range(FIRST_SAMPLED_STEP + 10 * FEW_STEPS):
        loop.step(steps_optimizer=index % 4 == 3)
        loop.drain()
    phases = loop.device_times().phases
    assert phases["optimizer"] == 0.0
    assert phases["backward"] == pytest.approx(0.05)


def test_step_is_left_to_another_probe_that_listens_to_it() -> None:
    loop = Loop()
    other: Any = SimpleNamespace(enters=lambda _: None, leaves=lambda _: None)
    loop.step(FIRST_SAMPLED_STEP)
    loop.listen(other)
    loop.step()
    assert loop.timeline.phase_listener is other
    loop.listen(None)
    loop.is_profiling = True
    loop.step()
    assert loop.n_events == 0
    loop.is_profiling = False
    loop.step()
    loop.drain()
    assert loop.device_times().n_phases_sampled == 1
    assert loop.timeline.phase_listener is None


def test_sample_is_left_out_when_another_probe_made_the_step_longer() -> None:
    loop = Loop()
    loop.step(FIRST_SAMPLED_STEP)
    loop.main.is_left_out = True
    loop.step()
    loop.main.is_left_out = False
    loop.drain()
    assert loop.device_times().phases == {}


def test_no_event_is_recorded_or_queried_while_a_graph_is_captured() -> None:
    loop = Loop()

    def capture(part: str) -> None:
        loop.is_capturing = part != "backward"

    def checked(name: str) -> Callable[..., Any]:
        works = getattr(FakeEvent, name)

        def call(*args: Any) -> Any:
            assert not loop.is_capturing
            return works(*args)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("record", "query"):
            patch.setattr(FakeEvent, name, checked(name))
        loop.step(FIRST_SAMPLED_STEP)
        loop.between = capture
        loop.step()  # from within forward to within backward
        loop.is_capturing = True
        loop.drain()
        assert loop.device_times().phases == {}
        loop.step(FEW_STEPS)  # a step that is captured as a whole
        loop.is_capturing, loop.between = False, lambda _: None
        loop.step(2 * FEW_STEPS)
        loop.drain()
        assert loop.device_times().n_phases_sampled >= 1
    assert loop.errors == []


def test_pending_sample_is_not_read_while_a_graph_is_captured() -> None:
    loop = Loop()
    loop.step(FIRST_SAMPLED_STEP + 1)
    loop.drain()
    loop.is_capturing = True
    assert loop.device_times().phases == {}
    loop.is_capturing = False
    assert loop.device_times().n_phases_sampled == 1


def test_time_between_phases_belongs_to_none() -> None:
    loop = Loop()

    def pass_through(steps_optimizer: bool) -> None:
        loop.work("training_step", 0.02)
        loop.device.launch(0.7)
        loop.work("backward", 0.05)

    loop.pass_through = pass_through  # type: ignore[method-assign]
    loop.step(FIRST_SAMPLED_STEP + 1)
    loop.drain()
    assert loop.device_times().phases == {"forward": pytest.approx(0.02), "backward": pytest.approx(0.05)}


def test_passes_of_manual_optimization_are_added_up() -> None:
    loop = Loop()

    def pass_through(steps_optimizer: bool) -> None:
        with loop.parts["training_step"]:
            for _ in range(2):
                loop.device.launch(0.01)
                loop.work("backward", 0.02)
                loop.work("optimizer_step", 0.001)

    loop.pass_through = pass_through  # type: ignore[method-assign]
    loop.step(FIRST_SAMPLED_STEP + 1)
    loop.drain()
    expected = {"forward": 0.02, "backward": 0.04, "optimizer": 0.002}
    assert loop.device_times().phases == {name: pytest.approx(value) for name, value in expected.items()}


@pytest.mark.parametrize("name", ["record", "query", "elapsed_time"])
def test_error_of_an_event_ends_the_samples_and_keeps_those_before(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop()
    loop.step(FIRST_SAMPLED_STEP + 1)
    loop.drain()
    assert loop.device_times().n_phases_sampled == 1

    def broken(*_: Any) -> Any:
        raise RuntimeError("CUDA error")

    monkeypatch.setattr(FakeEvent, name, broken)
    for _ in range(3):
        loop.step(FEW_STEPS)
        loop.drain()
        assert loop.device_times().n_phases_sampled == 1
    assert [str(error) for error in loop.errors] == ["CUDA error"]
    assert loop.timeline.phase_listener is None


def test_reason_is_given_when_no_event_can_be_made() -> None:
    loop = Loop()
    loop.clock.make_event = partial(Loop._raise, RuntimeError("no events left"))
    loop.step(FIRST_SAMPLED_STEP + 2)
    assert [str(error) for error in loop.errors] == ["no events left"]
    assert "probes_off" in loop.probe.reasons()["steady.device.phases"]


def test_number_of_events_is_limited() -> None:
    loop = Loop()

    def pass_through(steps_optimizer: bool) -> None:
        for _ in range(_MAX_MARKS):
            loop.work("backward", 0.0)

    loop.pass_through = pass_through  # type: ignore[method-assign]
    loop.step(FIRST_SAMPLED_STEP + 1)
    assert loop.n_events == _MAX_MARKS
    assert len(loop.errors) == 1


def test_nothing_is_read_from_a_device_when_the_run_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop()
    loop.step(FIRST_SAMPLED_STEP + 1)
    loop.drain()
    loop.probe.run_ends(RuntimeError("device-side assert triggered"))
    monkeypatch.setattr(FakeEvent, "query", partial(Loop._raise, RuntimeError("device-side assert triggered")))
    assert loop.device_times().phases == {}
    assert loop.errors == []


# -- in trainings -----------------------------------------------------------------------------------------------------


class RealClock(FakeClock):
    """The host's clock as one of a ``FakeDevice``."""

    def __init__(self) -> None:
        pass

    @property
    def now(self) -> int:  # type: ignore[override]
        return time.perf_counter_ns()


class Net(LightningModule):
    """Launch work on a fake device: 20 µs in forward, 30 µs in backward, 10 µs in the optimizer."""

    def __init__(self, device: FakeDevice, is_manual: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.launch = device.launch
        self.automatic_optimization = not is_manual

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        self.launch(20e-6)
        out: torch.Tensor = self.layer(batch)
        out.register_hook(lambda _: self.launch(30e-6))
        return out

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        loss = self(batch).square().mean()
        if not self.automatic_optimization:
            optimizer: Any = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        optimizer.register_step_pre_hook(lambda *_: self.launch(10e-6))
        return optimizer


BATCHES = DataLoader(torch.ones(FIRST_SAMPLED_STEP + 2 * FEW_STEPS, 4), batch_size=1)


def fit(doctor: PerfDoctor, folder: Path, device: FakeDevice, is_manual: bool) -> None:
    trainer = Trainer(accelerator="cpu", max_epochs=2, logger=False, enable_checkpointing=False, callbacks=[doctor],
                      enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder)  # fmt: skip
    trainer.fit(Net(device, is_manual), BATCHES)


def loop_by_hand(doctor: PerfDoctor, folder: Path, device: FakeDevice) -> None:
    net = Net(device)
    optimizer = net.configure_optimizers()
    doctor.watch(net, optimizer)
    for _ in range(2):
        for batch in doctor.steps(BATCHES):
            optimizer.zero_grad()
            net(batch).square().mean().backward()
            optimizer.step()
    doctor.close()


TRAININGS = {
    "automatic": partial(fit, is_manual=False),
    "manual": partial(fit, is_manual=True),
    "loop": loop_by_hand,
}


def trained(name: str, folder: Path, patch: pytest.MonkeyPatch) -> Session:
    patch.chdir(folder)
    device = FakeDevice(RealClock())
    patch.setattr(steps, "device_clock", lambda _, on_fail: (DeviceClock(device.event, "fake", on_fail), ""))
    doctor = PerfDoctor(schedule=None, reports=[], probe_data=False)
    TRAININGS[name](doctor, folder, device)
    return doctor.session


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TRAININGS)
def test_training_has_phases_of_its_device(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = trained(name, tmp_path, monkeypatch)
    phases = session.steady.device.phases
    assert set(phases) == {"forward", "backward", "optimizer"}
    assert phases["forward"] > 19e-6
    assert phases["backward"] > 29e-6
    assert phases["optimizer"] > 9e-6
    assert session.steady.device.n_phases_sampled >= 2
    assert session.probes_off == ()


@pytest.mark.filterwarnings("ignore")
def test_failure_is_named_in_the_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DevicePhases, "_mark", partial(Loop._raise, RuntimeError("planted")))
    session = trained("automatic", tmp_path, monkeypatch)
    assert [(off.probe, off.error) for off in session.probes_off] == [("device_phases", "RuntimeError: planted")]
    assert "probes_off" in session.missing["steady.device.phases"]
    assert session.run.n_steps == 2 * len(BATCHES)


@pytest.mark.filterwarnings("ignore")
def test_cpu_has_no_phases_of_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    doctor = PerfDoctor(schedule=None, reports=[], probe_data=False)
    fit(doctor, tmp_path, FakeDevice(RealClock()), is_manual=False)
    assert not [name for name in doctor.session.missing if name.startswith("steady.device.")]
