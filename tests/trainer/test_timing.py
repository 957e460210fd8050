"""Sleeps of known length are found where they were made, and nowhere else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import Logger
from lightning.pytorch.plugins.io import TorchCheckpointIO

from lightning_perf import PerfDoctor
from lightning_perf.probes import recorder
from lightning_perf.probes.spans import N_PHASES, PHASE_INDEX
from lightning_perf.probes.tally import KIND, USUAL_STEP

from .conftest import Make, assert_adds_up
from .models import FetchesItself, Manual, Sleeps, Tiny, loader, unsized_loader

N_STEPS = 12
SLEEP_S = 0.012
LEAK_S = SLEEP_S / 3  # more than a phase of the tiny model varies on a machine that does other work


class SleepyCallback(Callback):
    """Another callback."""

    def __init__(self, sleeps: Sleeps) -> None:
        self.sleeps = sleeps

    def on_train_batch_end(self, *_: Any) -> None:
        self.sleeps("callback")


class SleepyLogger(Logger):
    """A logger that takes its time."""

    def __init__(self, sleeps: Sleeps) -> None:
        super().__init__()
        self.sleeps = sleeps

    @property
    def name(self) -> str:
        return "sleepy"

    @property
    def version(self) -> int:
        return 0

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """Logs nothing."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        if "loss" in metrics:
            self.sleeps("logger")


class SleepyCheckpointIO(TorchCheckpointIO):
    """A slow disk."""

    def __init__(self, sleeps: Sleeps) -> None:
        super().__init__()
        self.sleeps = sleeps

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        super().save_checkpoint(*args, **kwargs)
        self.sleeps("checkpoint")


class Sleepy(Tiny):
    """A model whose own hooks can sleep too."""

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        if self.trainer.training:
            self.sleeps("before_transfer")
        return batch

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        if self.trainer.training:
            self.sleeps("transfer")
        return super().transfer_batch_to_device(batch, device, dataloader_idx)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.sleeps("module_hook")


class SleepyManual(Manual, Sleepy):
    """The same with manual optimization."""


class SleepyFetches(FetchesItself, Sleepy):
    """The same with steps that fetch themselves."""


class KeepsRows(Callback):
    """Reads what PerfDoctor measured of each single step, when the run is over."""

    def __init__(self, doctor: PerfDoctor) -> None:
        self.doctor = doctor

    def on_train_end(self, *_: Any) -> None:
        loop = self.doctor._loop
        assert loop is not None
        loop.main.stage_times()
        self.rows = loop.main._matrix()
        self.start_ns = loop.timeline.start_ns


class Measured:
    """The usual steps of one run, and how long each of them slept.

    Rows have no gaps, so that the time at which each began is known; a sleep belongs to the row that encloses it.
    """

    def __init__(self, kept: KeepsRows, sleeps: Sleeps) -> None:
        rows = kept.rows[:, :N_PHASES]
        ends = kept.start_ns + np.cumsum(rows.sum(axis=1))
        slept_ns = np.zeros(len(rows))
        for begin, end in sleeps.taken_ns:
            row = int(np.searchsorted(ends, begin))
            if row < len(rows):
                assert end <= ends[row], "a sleep lies across the border of two steps"
                slept_ns[row] += end - begin
        is_usual = kept.rows[:, KIND] == USUAL_STEP
        self.rows_s = rows[is_usual] / 1e9
        self.slept_s = slept_ns[is_usual] / 1e9

    def phase_s(self, name: str) -> Any:
        """Seconds of each step in a phase."""
        return self.rows_s[:, PHASE_INDEX[name]]


VARIANTS = ("plain", "accumulation", "manual", "manual_raw", "mid_epoch_validation", "unsized", "dataloader_iter")
PHASE_OF = {
    "fetch": "data_wait",
    "before_transfer": "transfer",
    "transfer": "transfer",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "callback": "callbacks",
    "module_hook": "callbacks",
    "logger": "logging",
}
NAMED_AS = {"callback": "SleepyCallback", "logger": "SleepyLogger", "module_hook": "Sleepy"}
_baselines: dict[str, Measured] = {}


@pytest.fixture(autouse=True)
def _no_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the sleeps is timed here: no child process that takes a core."""
    monkeypatch.setattr(recorder.Recorder, "_suspicious_loader", lambda self: None)


def trained(make_trainer: Make, variant: str, sleeps: Sleeps, *callbacks: Any, **arguments: Any) -> tuple[Any, Any]:
    """What the steps of one fit came to, and its session."""
    if variant == "accumulation":
        arguments["accumulate_grad_batches"] = 2
    if variant == "mid_epoch_validation":
        arguments["val_check_interval"] = 3
    model = {
        "manual": lambda: SleepyManual(sleeps),
        "manual_raw": lambda: SleepyManual(sleeps, is_raw=True),
        "dataloader_iter": lambda: SleepyFetches(sleeps),
    }.get(variant, lambda: Sleepy(sleeps))()
    doctor = PerfDoctor(schedule=None, memory=False, reports=[])  # memory leaves one step out
    kept = KeepsRows(doctor)
    trainer = make_trainer(
        SleepyCallback(sleeps),
        doctor,
        kept,
        *callbacks,
        logger=SleepyLogger(sleeps),
        log_every_n_steps=1,
        num_sanity_val_steps=0,
        **arguments,
    )
    train = unsized_loader(N_STEPS, sleeps) if variant == "unsized" else loader(N_STEPS, sleeps)
    trainer.fit(model, train, loader(2) if variant == "mid_epoch_validation" else None)
    assert_adds_up(doctor.session)
    return Measured(kept, sleeps), doctor.session


def baseline(make_trainer: Make, variant: str) -> Measured:
    """The same without a sleep: what the work itself takes."""
    if variant not in _baselines:
        _baselines[variant] = trained(make_trainer, variant, Sleeps())[0]
    return _baselines[variant]


def assert_found(measured: Measured, work: Measured, phase: str) -> None:
    """Asserts that a phase holds each sleep whole, and no other phase any of it.

    Phases are exclusive and rows have no gaps, so that a phase which is never shorter than the sleep holds it. That
    nothing is counted twice shows in the step that the machine disturbed least, beside the work alone.
    """
    slept = measured.slept_s > 0
    assert slept.sum() >= 2
    beside_s = (measured.phase_s(phase) - measured.slept_s)[slept]
    assert beside_s.min() >= 0
    assert beside_s.min() <= work.phase_s(phase).min() + LEAK_S
    for other in PHASE_INDEX:
        if other != phase:
            least_s = measured.phase_s(other)[slept].min()
            assert least_s <= work.phase_s(other).min() + LEAK_S, f"{other} holds {least_s:.4f} s of each step"


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("place", list(PHASE_OF))
def test_sleep_is_found_in_its_phase_and_nowhere_else(make_trainer: Make, variant: str, place: str) -> None:
    if variant == "dataloader_iter" and "transfer" in place:
        pytest.skip("a step that fetches itself is handed no batch that Lightning would transfer")
    if variant.startswith("manual") and place == "logger":
        pytest.skip("this model logs nothing")
    work = baseline(make_trainer, variant)
    sleeps = Sleeps(**{place: SLEEP_S})
    measured, session = trained(make_trainer, variant, sleeps)
    assert_found(measured, work, PHASE_OF[place])
    if place in NAMED_AS:
        first = next(t for t in session.steady.named if t.kind == place)
        assert first.name.startswith(NAMED_AS[place])
        assert first.total_s >= measured.slept_s.sum()


def test_sleep_is_found_in_validation_when_it_runs_mid_epoch(make_trainer: Make) -> None:
    sleeps = Sleeps(validation=SLEEP_S)
    measured, session = trained(make_trainer, "mid_epoch_validation", sleeps)
    slept = measured.slept_s > 0
    beside_s = (measured.phase_s("validation") - measured.slept_s)[slept]
    assert beside_s.min() >= 0
    assert beside_s.min() < 2 * SLEEP_S  # the work of a round beside the sleeps of its two batches
    assert measured.phase_s("forward")[slept].min() < SLEEP_S
    validation = session.validation
    assert validation.phases["forward"].p50_s >= SLEEP_S
    assert max(validation.phases, key=lambda name: validation.phases[name].total_s) == "forward"


@pytest.mark.parametrize("when", ["train_steps", "validation_end"])
def test_sleep_is_found_in_checkpoint_when_the_disk_is_slow(make_trainer: Make, when: str, tmp_path: Any) -> None:
    slept_s = 3 * SLEEP_S
    sleeps = Sleeps(checkpoint=slept_s)
    save = ModelCheckpoint(
        dirpath=tmp_path,
        save_top_k=-1,
        every_n_train_steps=3 if when == "train_steps" else None,
        every_n_epochs=1 if when == "validation_end" else None,
        filename="{step}",
    )
    variant = "plain" if when == "train_steps" else "mid_epoch_validation"
    measured, session = trained(
        make_trainer, variant, sleeps, save, enable_checkpointing=True, plugins=[SleepyCheckpointIO(sleeps)]
    )
    slept = measured.slept_s > 0
    assert slept.sum() >= 3
    beside_s = (measured.phase_s("checkpoint") - measured.slept_s)[slept]
    assert beside_s.min() >= 0
    assert beside_s.min() < slept_s  # torch.save of a tiny model
    for other in ("validation", "callbacks", "forward", "logging"):
        assert measured.phase_s(other)[slept].min() < slept_s
    assert any(t.phase == "checkpoint" for t in session.steady.named)


def test_other_is_small_when_steps_are_as_long_as_real_ones(make_trainer: Make) -> None:
    measured, _ = trained(make_trainer, "plain", Sleeps(forward=0.02))
    shares = measured.phase_s("other") / measured.rows_s.sum(axis=1)
    assert np.quantile(shares, 0.25) < 0.03
