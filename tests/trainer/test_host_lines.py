"""Lines planted in real trainings, which the samples of the training thread's stack must name."""

from __future__ import annotations

import gc
import inspect
import json
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from torch import nn
from torch.utils.data import DataLoader, Dataset

from lightning_perf import PerfDoctor
from lightning_perf.probes.host_lines import sampler
from lightning_perf.probes.host_lines.sampler import LineSampler
from lightning_perf.records import Session

from .conftest import Make
from .models import Tiny, loader

HERE = Path(__file__).name
THREAD = "lightning-perf host lines"
DOCUMENT = json.dumps([list(range(100))] * 2000)
ENOUGH, MAX_STEPS, MAX_S = 60, 5000, 60.0


@pytest.fixture(autouse=True)
def _sample_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "MAX_SHARE", 100.0)
    monkeypatch.setattr(sampler, "_LATER_SHARE", 100.0)
    monkeypatch.setattr(sampler, "_REST_S", 1e-3)


class StopWhenSampled(Callback):
    """Ends the run once there are enough samples."""

    def __init__(self, doctor: PerfDoctor) -> None:
        self.doctor = doctor
        self.began_s = time.monotonic()

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        lines = self.doctor._probes.find(LineSampler)
        if lines._n >= ENOUGH or time.monotonic() - self.began_s > MAX_S:
            trainer.should_stop = True


class Samples(Dataset[torch.Tensor]):
    def __init__(self, is_slow: bool = False) -> None:
        self.is_slow = is_slow

    def __len__(self) -> int:
        return MAX_STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.is_slow:
            time.sleep(0.02)  # dataset
        return torch.ones(4)


class Planted(LightningModule):
    """A tiny network, and one line that takes nearly all of the step."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.net = nn.Linear(4, 1)
        self.fault = fault

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.fault == "sleep":
            time.sleep(0.02)  # sleep
        if self.fault == "json":
            json.loads(DOCUMENT)  # json
        if self.fault == "python":
            self.count()
        if self.fault == "collect":
            gc.collect()  # collect
        return self.net(batch).square().mean()

    def count(self) -> int:
        total = 0
        for i in range(300_000):
            total += i & 3  # python
        return total

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        if self.fault == "transfer":
            time.sleep(0.02)  # transfer
        return batch

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.01)
        if self.fault != "scheduler":
            return optimizer

        def rate(step: int) -> float:
            time.sleep(0.02)  # scheduler
            return 1.0

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def line_of(marker: str) -> int:
    source, first = inspect.getsourcelines(sys.modules[__name__])
    return next(first + i for i, text in enumerate(source, 1) if text.rstrip().endswith(f"  # {marker}"))


def trained(make_trainer: Make, fault: str, **arguments: Any) -> Session:
    doctor = PerfDoctor(reports=(), schedule=None, memory=False, arithmetic=False, module_depth=0, **arguments)
    stop = StopWhenSampled(doctor)
    trainer = make_trainer(doctor, stop, max_steps=MAX_STEPS, max_epochs=-1)
    gc.collect()
    gc.freeze()  # what other tests left behind makes collections slow
    try:
        trainer.fit(Planted(fault), DataLoader(Samples(fault == "dataset"), batch_size=1))
    finally:
        gc.unfreeze()
    session = doctor.session
    assert session is not None
    assert session.probes_off == ()
    return session


@pytest.mark.parametrize(
    ("fault", "phase", "function", "call"),
    [
        ("sleep", "forward", "training_step", "time.sleep"),
        ("json", "forward", "training_step", "json.loads"),
        ("python", "forward", "count", ""),
        ("scheduler", "scheduler", "rate", "time.sleep"),
        ("dataset", "data_wait", "__getitem__", "time.sleep"),
    ],
)
def test_planted_line_is_named_when_it_takes_most_of_the_step(
    make_trainer: Make, fault: str, phase: str, function: str, call: str
) -> None:
    profile = trained(make_trainer, fault).host_profile
    assert profile is not None
    line = profile.phases[phase].lines[0]
    assert (Path(line.file).name, line.function) == (HERE, function)
    # A loop in Python gives the lock away where it jumps back: at the line of its head.
    assert line_of(fault) - (fault == "python") <= line.line <= line_of(fault)
    if sys.version_info >= (3, 11) or call != "time.sleep":
        assert line.call == call
    assert line.operator_fraction < 0.1
    assert line.share > 0.5


@pytest.mark.parametrize(
    ("fault", "code"), [("sleep", "PD511"), ("json", "PD511"), ("transfer", "PD511"), ("scheduler", "PD512")]
)
def test_finding_names_the_planted_line_when_it_takes_most_of_the_step(
    make_trainer: Make, fault: str, code: str
) -> None:
    session = trained(make_trainer, fault)
    (found,) = [finding for finding in session.findings if finding.code == code]
    assert found.severity == "high"
    assert f"{HERE}:{line_of(fault)}" in found.summary


def test_collection_is_reported_with_its_line_when_the_step_calls_it(make_trainer: Make) -> None:
    session = trained(make_trainer, "collect")
    (found,) = [finding for finding in session.findings if finding.code == "PD508"]
    assert f"{HERE}:{line_of('collect')}) called gc.collect()" in found.summary
    others = [finding.summary for finding in session.findings if finding.code == "PD511"]
    assert not [summary for summary in others if f"{HERE}:{line_of('collect')}" in summary]


class Watch(Callback):
    """Notes what the interpreter is set to in each step."""

    def __init__(self) -> None:
        self.seen: set[Any] = set()

    def on_train_batch_end(self, *_: Any) -> None:
        self.seen.add((sys.gettrace(), sys.getprofile(), torch.get_num_threads()))


def outcome(make_trainer: Make, *callbacks: Any) -> Any:
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    model = Tiny()
    make_trainer(*callbacks).fit(model, loader(60))
    weights = [p.detach().clone() for p in model.parameters()]
    return weights, torch.get_rng_state(), random.getstate(), repr(np.random.get_state())


def test_training_is_bit_identical_when_its_lines_are_sampled(make_trainer: Make) -> None:
    usual = sys.getswitchinterval()
    watch = Watch()
    with_lines = outcome(make_trainer, PerfDoctor(reports=()), watch)
    without = outcome(make_trainer)
    assert all(torch.equal(a, b) for a, b in zip(with_lines[0], without[0], strict=True))
    assert torch.equal(with_lines[1], without[1])
    assert with_lines[2:] == without[2:]
    assert watch.seen == {(sys.gettrace(), sys.getprofile(), 1)}
    assert sys.getswitchinterval() == usual


class Ends(Planted):
    """Ends in the middle of a burst."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__("sleep")
        self.error = error

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if batch_idx == 8:
            raise self.error("planted")
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_thread_and_switch_interval_are_as_before_when_the_run_ends_badly(
    make_trainer: Make, error: type[BaseException]
) -> None:
    usual = sys.getswitchinterval()
    with pytest.raises((error, SystemExit)):
        make_trainer(PerfDoctor(reports=())).fit(Ends(error), DataLoader(Samples(), batch_size=1))
    assert not [thread for thread in threading.enumerate() if thread.name == THREAD]
    assert sys.getswitchinterval() == usual


def test_thread_ends_by_itself_when_the_end_of_the_run_is_missed(make_trainer: Make) -> None:
    doctor = PerfDoctor(reports=())
    doctor.teardown = doctor.on_exception = lambda *_, **__: None  # type: ignore[method-assign]
    make_trainer(doctor).fit(Tiny(), loader(20))
    (thread,) = [one for one in threading.enumerate() if one.name == THREAD] or [None]
    try:
        if thread is not None:
            thread.join(30)
            assert not thread.is_alive()
    finally:
        if doctor._run is not None:
            doctor._run.restore()


def test_no_thread_is_started_when_the_user_does_not_want_it(make_trainer: Make) -> None:
    doctor = PerfDoctor(reports=(), host_lines=False)
    make_trainer(doctor).fit(Tiny(), loader(20))
    assert doctor.session is not None
    assert doctor.session.host_profile is None
    assert doctor.session.missing["host_profile"] == "host_lines=False"
