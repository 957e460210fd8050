"""Sleeps of known length are found where they were made, and nowhere else.

Sleeps and probes share a clock that only sleeping and reading it move: what else the machine does changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import Logger
from lightning.pytorch.plugins.io import TorchCheckpointIO

import lightning_perf.probes.timeline.steps
import lightning_perf.run
from lightning_perf import PerfDoctor
from lightning_perf.probes.loader.watch import LoaderWatch
from lightning_perf.probes.timeline.spans import N_PHASES, PHASE_INDEX
from lightning_perf.probes.timeline.step_aggregator import KIND, USUAL_STEP
from tests.fakes import FakeClock

from .conftest import Make, assert_adds_up
from .models import FetchesItself, Manual, Sleeps, Tiny, loader, unsized_loader

N_STEPS = 12
SLEEP_S = 0.05
READ_NS = 1000
EXACT_S = 100 * READ_NS / 1e9  # other threads read the clock too, and the collector starts when it likes


class SteadyClock(FakeClock):
    """A clock that each reading moves by the same time, so that nothing takes no time."""

    def __call__(self) -> int:
        self.now += READ_NS
        return self.now


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
    """Read PerfDoctor's figures of each step after the run."""

    def __init__(self, doctor: PerfDoctor) -> None:
        self.doctor = doctor

    def on_train_end(self, *_: Any) -> None:
        loop = self.doctor._probes.loop
        assert loop is not None
        loop.main.stage_times()
        self.rows = loop.main.rows_since((loop.main.mark()[0], 0))
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


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> SteadyClock:
    """The clock of probes and sleeps; a loader's own probe, which takes real time, is left out."""
    made = SteadyClock()
    for module in (lightning_perf.probes.timeline.steps, lightning_perf.run):
        monkeypatch.setattr(module, "now_ns", made)
    monkeypatch.setattr(Sleeps, "now_ns", made)
    monkeypatch.setattr(Sleeps, "sleep", made.advance)
    monkeypatch.setattr(LoaderWatch, "_suspicious_loader", lambda self, *args, **kwargs: None)
    return made


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


def excess_s(without: Measured, measured: Measured, phase: str) -> dict[str, float]:
    """Return by phase how much longer the steps with a sleep are than those without, the sleep itself left out."""
    slept = measured.slept_s > 0
    beside = {each: measured.phase_s(each)[slept] for each in PHASE_INDEX}
    beside[phase] = beside[phase] - measured.slept_s[slept]
    return {each: beside[each].max() - without.phase_s(each).max() for each in PHASE_INDEX}


@pytest.fixture(scope="module")
def without_sleep() -> dict[str, Measured]:
    """Runs without a sleep by variant: each is made once, for all places of a sleep."""
    return {}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("place", list(PHASE_OF))
def test_sleep_is_found_in_its_phase_and_nowhere_else(
    make_trainer: Make, without_sleep: dict[str, Measured], variant: str, place: str
) -> None:
    if variant == "dataloader_iter" and "transfer" in place:
        pytest.skip("a step that fetches itself is handed no batch that Lightning would transfer")
    if variant.startswith("manual") and place == "logger":
        pytest.skip("this model logs nothing")
    if variant not in without_sleep:
        without_sleep[variant], _ = trained(make_trainer, variant, Sleeps())
    measured, session = trained(make_trainer, variant, Sleeps(**{place: SLEEP_S}))
    assert (measured.slept_s > 0).sum() >= 2
    excess = excess_s(without_sleep[variant], measured, PHASE_OF[place])
    assert not {each: s for each, s in excess.items() if abs(s) > EXACT_S}
    if place in NAMED_AS:
        first = next(t for t in session.steady.named if t.kind == place)
        assert first.name.startswith(NAMED_AS[place])
        assert first.total_s >= measured.slept_s.sum()


def assert_found_between_steps(make: Callable[[Sleeps], tuple[Measured, Any]], sleeps: Sleeps, phase: str) -> Any:
    """Assert the same of what is not done in every step; return the session of the run with the sleep."""
    without, _ = make(Sleeps())
    measured, session = make(sleeps)
    assert (measured.slept_s > 0).sum() >= 3
    assert not {each: s for each, s in excess_s(without, measured, phase).items() if abs(s) > EXACT_S}
    return session


def test_sleep_is_found_in_validation_when_it_runs_mid_epoch(make_trainer: Make) -> None:
    def make(sleeps: Sleeps) -> tuple[Measured, Any]:
        return trained(make_trainer, "mid_epoch_validation", sleeps)

    session = assert_found_between_steps(make, Sleeps(validation=SLEEP_S), "validation")
    validation = session.validation
    assert validation.phases["forward"].p50_s >= 0.99 * SLEEP_S  # bins are 1 % wide
    assert max(validation.phases, key=lambda name: validation.phases[name].total_s) == "forward"


@pytest.mark.parametrize("when", ["train_steps", "validation_end"])
def test_sleep_is_found_in_checkpoint_when_the_disk_is_slow(make_trainer: Make, when: str, tmp_path: Any) -> None:
    def make(sleeps: Sleeps) -> tuple[Measured, Any]:
        save = ModelCheckpoint(
            dirpath=tmp_path,
            save_top_k=-1,
            every_n_train_steps=3 if when == "train_steps" else None,
            every_n_epochs=1 if when == "validation_end" else None,
            filename="{step}",
        )
        variant = "plain" if when == "train_steps" else "mid_epoch_validation"
        disk = SleepyCheckpointIO(sleeps)
        return trained(make_trainer, variant, sleeps, save, enable_checkpointing=True, plugins=[disk])

    session = assert_found_between_steps(make, Sleeps(checkpoint=SLEEP_S), "checkpoint")
    assert any(t.phase == "checkpoint" for t in session.steady.named)


def test_other_is_small_when_steps_are_as_long_as_real_ones(make_trainer: Make) -> None:
    measured, _ = trained(make_trainer, "plain", Sleeps(forward=0.02))
    assert (measured.phase_s("other") / measured.rows_s.sum(axis=1)).max() < 0.005


class LogsMuch(Tiny):
    """Thirty values at each step."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = super().training_step(batch, batch_idx)
        for index in range(30):
            self.log(f"value_{index}", loss, on_step=True, on_epoch=True)
        return loss


def test_collecting_counts_as_logging_when_the_module_logs_each_step(make_trainer: Make) -> None:
    doctor = PerfDoctor()
    make_trainer(doctor).fit(LogsMuch(), loader(N_STEPS))
    assert doctor.session is not None
    assert doctor.session.steady is not None
    assert_adds_up(doctor.session)
    collecting = {time.hook: time for time in doctor.session.steady.named if time.name == "metrics"}
    assert {time.phase for time in collecting.values()} == {"logging"}
    assert collecting["log"].n_calls >= 30 * (N_STEPS - 1)
    assert 0 < collecting["on_batch_end"].n_calls <= N_STEPS


class LogsFromThird(Tiny):
    """Record after each step what replaces the methods that collect logged values."""

    def __init__(self) -> None:
        super().__init__()
        self.replaced: list[set[str]] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self.loss(batch)
        if batch_idx >= 3:
            self.log("loss", loss)
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.replaced.append(set(vars(self.trainer._logger_connector)) & {"on_batch_end", "update_train_step_metrics"})


def test_collecting_is_left_alone_before_the_first_value_is_logged(make_trainer: Make) -> None:
    doctor, module = PerfDoctor(), LogsFromThird()
    trainer = make_trainer(doctor)
    trainer.fit(module, loader(N_STEPS))
    assert module.replaced[:3] == [set()] * 3
    assert module.replaced[3:] == [{"on_batch_end", "update_train_step_metrics"}] * (N_STEPS - 3)
    assert not set(vars(trainer._logger_connector)) & {"on_batch_end", "update_train_step_metrics"}
    assert doctor.session is not None
    assert doctor.session.steady is not None
    assert any(time.name == "metrics" for time in doctor.session.steady.named)


def test_share_of_a_callback_excludes_perf_doctors_own_time_at_the_end(make_trainer, monkeypatch, clock):
    """Waiting for a loader that is taken apart, say."""
    sleeps = Sleeps(callback=SLEEP_S)
    doctor = PerfDoctor(reports=[])
    monkeypatch.setattr(LoaderWatch, "before_report", lambda *_: clock.advance(4 * N_STEPS * SLEEP_S))
    make_trainer(SleepyCallback(sleeps), doctor).fit(Tiny(), loader(N_STEPS))
    (found,) = (time for time in doctor.session.steady.named if time.name == "SleepyCallback")
    assert found.share > 0.9  # of the training; of all until the end a fifth
