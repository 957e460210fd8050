"""PerfDoctor never changes a training: not when it works, and not when any part of it raises."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, seed_everything
from torch import nn
from torch.utils.data import DataLoader, Dataset

from lightning_perf import PerfDoctor, run
from lightning_perf.probes import probe_set
from lightning_perf.probes.clock import DeviceClock
from lightning_perf.probes.loader.prober import LoaderProber
from lightning_perf.probes.loader.watch import LoaderWatch
from lightning_perf.probes.memory import probe as memory
from lightning_perf.probes.model import saved_tensors
from lightning_perf.probes.profiler import window
from lightning_perf.probes.sampled_steps import gradients
from lightning_perf.probes.settings import probe as settings
from lightning_perf.probes.telemetry import pauses
from lightning_perf.probes.telemetry import probe as telemetry
from lightning_perf.probes.timeline import loop, spans, stage, steps
from lightning_perf.records import Session, load
from lightning_perf.reports import console, tensorboard
from lightning_perf.rules import engine
from lightning_perf.seams import timed
from tests.fakes import FakeClock, FakeDevice, FakeEvent
from tests.fuzzing import thinned

from .conftest import Make, assert_nothing_left
from .models import N_FEATURES, Manual, Tiny


class Augmented(Dataset):
    """Samples changed by all three random generators."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        noise = random.random() + np.random.rand() + torch.rand(1).item()
        return torch.full((N_FEATURES,), float(index)) + noise


class Random(Tiny):
    """Dropout, momentum, metrics: state of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(N_FEATURES, 4), nn.Dropout(0.5), nn.BatchNorm1d(4), nn.Linear(4, 1))

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Losses(Callback):
    """Keeps each step's loss and, at the end, the state of everything random."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.rng: Any = None

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *_: Any) -> None:
        self.losses.append(outputs["loss"].item())

    def on_train_end(self, *_: Any) -> None:
        self.rng = (random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist())


def outcome(make_trainer: Make, *callbacks: Any, num_workers: int = 0) -> tuple[Any, ...]:
    """All that a training leaves: losses, weights, optimizer state, generators; bit for bit."""
    seed_everything(7, verbose=False)
    losses = Losses()
    trained = Random()
    trainer = make_trainer(*callbacks, losses, max_epochs=2, logger=True, log_every_n_steps=1)
    profiler = trainer.profiler
    train = DataLoader(Augmented(), batch_size=2, shuffle=True, num_workers=num_workers)
    trainer.fit(trained, train, DataLoader(Augmented(), batch_size=4))
    assert_nothing_left(trainer, profiler)
    weights = {name: value.tolist() for name, value in trained.state_dict().items()}
    return losses.losses, weights, str(trainer.optimizers[0].state_dict()), losses.rng


_without_doctor: dict[int, Any] = {}


def expected(make_trainer: Make, num_workers: int = 0) -> tuple[Any, ...]:
    """The same without PerfDoctor."""
    if num_workers not in _without_doctor:
        _without_doctor[num_workers] = outcome(make_trainer, num_workers=num_workers)
    return _without_doctor[num_workers]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_training_is_bit_identical_when_nothing_fails(make_trainer: Make, num_workers: int) -> None:
    doctor = PerfDoctor()
    assert outcome(make_trainer, doctor, num_workers=num_workers) == expected(make_trainer, num_workers)
    assert doctor.session is not None
    assert doctor.session.probes_off == ()


class Planted(RuntimeError):
    """What the tests plant."""


def raises(*_: Any, **__: Any) -> Any:
    raise Planted("planted")


def clock_fails_later(patch: pytest.MonkeyPatch) -> None:
    """The host's clock works at first, then raises."""
    begin = stage.StageTimer.batch_ends
    seen = []

    def batch_ends(self: Any, *args: Any) -> None:
        begin(self, *args)
        seen.append(1)
        if len(seen) == 5:
            self.timeline.now_ns = raises

    patch.setattr(stage.StageTimer, "batch_ends", batch_ends)


def events_fail_later(method: str) -> Callable[[pytest.MonkeyPatch], None]:
    """A device with a clock, whose events raise from some point on."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        device = FakeDevice(FakeClock())
        patch.setattr(steps, "device_clock", lambda _, on_fail: (DeviceClock(device.event, "fake", on_fail), ""))
        works = getattr(FakeEvent, method)
        calls = []

        def sometimes(*args: Any) -> Any:
            calls.append(1)
            if len(calls) > 6:
                raise Planted("planted")
            return works(*args)

        patch.setattr(FakeEvent, method, sometimes)

    return plant


def collecting_cannot_be_timed(patch: pytest.MonkeyPatch) -> None:
    """What Lightning collects cannot be tapped when the first value is logged, within the user's own call."""
    works = timed._put

    def put(method: Any, *undos: Any) -> Any:
        return raises() if method.__name__ == "on_batch_end" else works(method, *undos)

    patch.setattr(timed, "_put", put)


def at(owner: Any, name: str) -> Callable[[pytest.MonkeyPatch], None]:
    """``owner.name`` raises."""
    return lambda patch: patch.setattr(owner, name, raises)


FAULTS: dict[str, tuple[str, Callable[[pytest.MonkeyPatch], None]]] = {
    "clock": ("steps", clock_fails_later),
    "batch_begins": ("steps", at(stage.StageTimer, "batch_begins")),
    "batch_ends": ("steps", at(stage.StageTimer, "batch_ends")),
    "fetch_begins": ("steps", at(stage.StageTimer, "fetch_begins")),
    "fetch_ends": ("steps", at(stage.StageTimer, "fetch_ends")),
    "epoch_ends": ("steps", at(stage.StageTimer, "epoch_ends")),
    "epoch_begins": ("steps", at(stage.StageTimer, "epoch_begins")),
    "span_for": ("steps", at(loop.LoopTimer, "_span_for")),
    "swap_counters": ("steps", at(spans.Timeline, "swap_counters")),
    "install": ("steps", at(loop.LoopTimer, "install")),
    "pauses": ("collections", at(pauses.GarbagePauses, "start")),
    "tap_logging": ("steps", at(loop.seams, "tap_logging")),
    "first value logged": ("steps", collecting_cannot_be_timed),
    "tap_validation": ("steps", at(loop.seams, "tap_validation")),
    "stage_times": ("steps", at(stage.StageTimer, "stage_times")),
    "named": ("steps", at(loop.LoopTimer, "named")),
    "own_ns": ("overhead", at(loop.LoopTimer, "own_ns")),
    "session": ("session", at(probe_set.ProbeSet, "_with_parts")),
    "part": ("settings", at(settings.SettingsProbe, "part")),
    "reasons": ("telemetry", at(telemetry.TelemetryProbe, "reasons")),
    "machine": ("machine", at(run, "read_machine")),
    "settings": ("settings", at(settings, "read_settings")),
    "step_logging": ("settings", at(settings.seams, "step_logging")),
    "memory": ("memory", at(memory.MemoryProbe, "open")),
    "memory at a step": ("memory", at(memory.MemoryProbe, "_observe")),
    "memory as a step begins": ("memory", at(memory.MemoryProbe, "step_begins")),
    "memory as a step ends": ("memory", at(memory.MemoryProbe, "step_ends")),
    "a part of a sampled step begins": ("steps", at(memory.MemoryProbe, "enters")),
    "a part of a sampled step ends": ("steps", at(memory.MemoryProbe, "leaves")),
    "window at a step": ("windows", at(window.WindowProbe, "step_begins")),
    "before_backward": ("gradients", at(gradients.ZeroGradWatch, "before_backward")),
    "after_backward": ("gradients", at(gradients.ZeroGradWatch, "after_backward")),
    "before_zero_grad": ("gradients", at(gradients.ZeroGradWatch, "before_zero_grad")),
    "gradients_summary": ("gradients", at(gradients.ZeroGradWatch, "summary")),
    "suspicious_loader": ("loader", at(LoaderWatch, "_suspicious_loader")),
    "stop": ("loader teardown", at(LoaderProber, "close")),
    "device_clock": ("device", at(steps, "device_clock")),
    "event_record": ("device", events_fail_later("record")),
    "event_query": ("device", events_fail_later("query")),
    "event_elapsed": ("device", events_fail_later("elapsed_time")),
    "diagnose": ("diagnosis", at(run, "diagnose")),
    "preflight": ("preflight", at(run, "preflight")),
    "emit": ("console", at(console, "emit")),
    "brief_epoch": ("console", at(console, "brief_epoch")),
    "brief_report": ("console", at(console, "brief_report")),
    "scalars": ("tensorboard", at(tensorboard, "scalars")),
    "write_text": ("tensorboard", at(tensorboard, "write_text")),
    "save": ("json", at(Session, "save")),
}


def test_session_is_saved_in_the_end_when_saving_failed_before(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    save, attempts = Session.save, []

    def full_at_first(session: Session, path: Path) -> None:
        attempts.append(path)
        if len(attempts) == 1:
            raise OSError(28, "No space left on device")
        save(session, path)

    monkeypatch.setattr(Session, "save", full_at_first)
    outcome(make_trainer, PerfDoctor(schedule=None, out_dir=tmp_path / "out"))
    session = load(tmp_path / "out")
    assert session.run.status == "finished"
    assert [failure.probe for failure in session.probes_off] == ["json"]


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name.startswith("lightning_perf") and r.levelno >= 30]


@pytest.mark.parametrize("fault", list(FAULTS))
def test_training_is_bit_identical_when_a_probe_or_report_raises(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    without = expected(make_trainer)
    caplog.clear()
    probe, plant = FAULTS[fault]
    doctor = PerfDoctor(schedule=(2, 1, 2) if probe == "windows" else None)
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        if fault == "stop":
            patch.setattr(LoaderWatch, "_suspicious_loader", lambda *_, **__: object())
        plant(patch)
        assert outcome(make_trainer, doctor) == without
    assert len(warnings_of(caplog)) == 1, warnings_of(caplog)
    session = doctor.session
    assert session is not None
    assert probe in {failure.probe for failure in session.probes_off}
    assert {failure.error for failure in session.probes_off} == {"Planted: planted"}
    assert session.run.status == "finished"
    if probe != "diagnosis":
        codes = {f.code for f in session.findings} | {o.code for o in session.outcomes if o.status == "finding"}
        assert "PD906" in codes
    if probe != "json":
        (path,) = Path().rglob("perf_session.json")
        assert b'"probes_off"' in path.read_bytes()
        assert b"planted" in path.read_bytes()


def test_optimizer_of_manual_optimization_steps_when_watching_gradients_raises(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gradients.ZeroGradWatch, "after_step", raises)
    doctor = PerfDoctor(schedule=None, reports=["json"])
    trainer = make_trainer(doctor)
    with caplog.at_level(logging.WARNING):
        trainer.fit(Manual(), DataLoader(Augmented(), batch_size=2))
    assert trainer.global_step == 8
    assert len(warnings_of(caplog)) == 1
    assert doctor.session is not None
    assert [failure.probe for failure in doctor.session.probes_off] == ["gradients"]


def test_saved_tensors_are_not_observed_after_memory_fails_within_a_step(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In manual optimization, backward is inside training_step, which sampling covers."""
    seen: list[int] = []
    failed_at: list[int] = []
    trainer = make_trainer(PerfDoctor(schedule=None, reports=[]), max_epochs=4)
    works, reads = saved_tensors.SavedTensors._pack, memory.MemoryProbe._part_ends

    def pack(self: Any, tensor: torch.Tensor) -> torch.Tensor:
        seen.append(trainer.global_step)
        return works(self, tensor)

    def edge(self: Any, phase: str) -> None:
        if phase == "backward" and seen:
            failed_at.append(trainer.global_step)
            raise Planted("planted")
        reads(self, phase)

    monkeypatch.setattr(saved_tensors.SavedTensors, "_pack", pack)
    monkeypatch.setattr(memory.MemoryProbe, "_part_ends", edge)
    trainer.fit(Manual(), DataLoader(Augmented(), batch_size=2))
    (step,) = failed_at
    assert max(seen) == step < trainer.global_step - 1


CODES = [rule.code for rule in engine.all_rules()]
_measured: list[Session] = []


def diagnosed(make_trainer: Make) -> Session:
    """Return the session of a training."""
    doctor = PerfDoctor(schedule=None, reports=["json"])
    make_trainer(doctor).fit(Tiny(), DataLoader(Augmented(), batch_size=2))
    assert doctor.session is not None
    return doctor.session


def plant_in_rule(patch: pytest.MonkeyPatch, code: str) -> None:
    rules = tuple(
        msgspec.structs.replace(rule, check=raises) if rule.code == code else rule for rule in engine.all_rules()
    )
    patch.setattr(engine, "all_rules", lambda: rules)


def assert_only_one_failed(session: Session, code: str) -> None:
    by_code = {o.code: o for o in session.outcomes}
    assert list(by_code) == CODES
    assert by_code[code].status == "failed"
    assert "Planted" in by_code[code].reason
    assert sum(o.status == "failed" for o in by_code.values()) == 1


@pytest.mark.parametrize("code", CODES)
def test_other_rules_answer_when_one_rule_raises(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    if not _measured:  # rules only read the session: one serves them all
        _measured.append(diagnosed(make_trainer))
    plant_in_rule(monkeypatch, code)
    assert_only_one_failed(engine.diagnose(_measured[0]), code)


@pytest.mark.parametrize("code", thinned(CODES[:1], CODES[1:]))
def test_training_is_diagnosed_by_the_other_rules_when_one_rule_raises(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    plant_in_rule(monkeypatch, code)
    assert_only_one_failed(diagnosed(make_trainer), code)
