"""Telemetry in real trainings: planted faults are named, healthy trainings have no finding, all is restored."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from lightning_perf import PerfDoctor
from lightning_perf.errors import ConfigError
from lightning_perf.reports import console

from .conftest import Make, assert_nothing_left
from .models import N_FEATURES, Tiny, loader

linux = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel reports no run queues")


def telemetry_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "telemetry" in thread.name]


class Slow(Dataset):
    """Reads through a layer that sleeps, as a distant storage does."""

    def __init__(self, sleep_s: float = 0.02) -> None:
        self.sleep_s = sleep_s

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.sleep_s)
        return torch.ones(N_FEATURES)


class Hungry(Dataset):
    """Computes for each sample."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((N_FEATURES,), float(sum(i * i for i in range(60_000)) % 5))


class Roomy(Dataset):
    """Costs nothing."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(N_FEATURES)


class Works(Tiny):
    """Computes long enough for loading not to matter."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        sum(i * i for i in range(60_000))
        return super().training_step(batch, batch_idx)


def session_of(make_trainer: Make, model: Any, data: Any, n_batches: int) -> Any:
    """The session of a run of a few seconds, after checking that nothing is left behind."""
    doctor = PerfDoctor(schedule=None, reports=[])
    trainer = make_trainer(doctor, limit_train_batches=n_batches)
    profiler = trainer.profiler
    trainer.fit(model, data)
    assert_nothing_left(trainer, profiler)
    assert telemetry_threads() == []
    assert doctor.session.probes_off == ()
    return doctor.session


def codes(session: Any) -> set[str]:
    return {finding.code for finding in session.findings}


@pytest.fixture
def one_core() -> Iterator[None]:
    """Binds this process, and what it starts, to one core: on any machine two busy processes are then too many."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@linux
@pytest.mark.parametrize("n_workers", [0, 2])
def test_storage_is_named_when_loading_sleeps(make_trainer: Make, n_workers: int) -> None:
    session = session_of(make_trainer, Tiny(), DataLoader(Slow(), batch_size=2, num_workers=n_workers), 80)
    assert "PD106" in codes(session), session.outcomes
    assert not {"PD102", "PD803"} & codes(session)


@pytest.mark.clinic
@linux
@pytest.mark.usefixtures("one_core")
def test_cores_are_named_when_workers_fight_over_them(make_trainer: Make) -> None:
    session = session_of(make_trainer, Tiny(), DataLoader(Hungry(), batch_size=2, num_workers=3), 300)
    assert "PD102" in codes(session), session.telemetry.host
    assert "PD106" not in codes(session)
    assert session.telemetry.host.n_workers >= 3
    assert session.telemetry.host.workers_cpu_cores.mean > 0.1


@linux
@pytest.mark.usefixtures("one_core")
def test_cores_are_named_when_another_program_holds_them(make_trainer: Make) -> None:
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        session = session_of(make_trainer, Tiny(), DataLoader(Hungry(), batch_size=2), 100)
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    assert {"PD102", "PD803"} & codes(session), session.telemetry.host
    assert "PD106" not in codes(session)


@pytest.mark.clinic
@linux
def test_nothing_is_named_when_the_training_is_healthy(make_trainer: Make) -> None:
    session = session_of(make_trainer, Works(), DataLoader(Roomy(), batch_size=2), 500)
    assert not {"PD102", "PD106", "PD803", "PD112"} & codes(session)
    host = session.telemetry.host
    assert host.n_samples >= 3
    assert host.process_cpu_cores.mean > 0
    assert host.n_torch_threads == 1
    assert host.batch_bytes == 2 * N_FEATURES * 4
    assert session.telemetry.timeline[-1].step <= session.run.n_steps
    assert session.telemetry.timeline[-1].start_s < session.run.wall_s


class Raises(Tiny):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        assert telemetry_threads()
        raise self.error


@pytest.mark.parametrize("error", [ValueError("planted"), KeyboardInterrupt(), SystemExit(1)])
def test_no_thread_is_left_when_the_run_is_cut_short(make_trainer: Make, error: BaseException) -> None:
    with pytest.raises((type(error), SystemExit)):
        make_trainer(PerfDoctor(reports=[])).fit(Raises(error), loader())
    assert telemetry_threads() == []


class AsksWorkers(Dataset):
    """Return the number of threads of the worker per sample, counted by Python and by the kernel."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(len(telemetry_threads())), float(threading.active_count())])


class Collects(Tiny):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.seen.append(batch)
        return super().training_step(torch.ones(2, N_FEATURES), batch_idx)


def test_forked_worker_has_no_sampling_thread_when_the_trainer_has_one(make_trainer: Make) -> None:
    model = Collects()
    data = DataLoader(AsksWorkers(), batch_size=2, num_workers=2, multiprocessing_context="fork", timeout=60)
    make_trainer(PerfDoctor(reports=[]), max_epochs=2).fit(model, data)
    assert torch.cat(model.seen)[:, 0].tolist() == [0.0] * 16


def test_nothing_is_sampled_when_device_stats_are_off(make_trainer: Make) -> None:
    doctor = PerfDoctor(reports=[], device_stats=False)
    make_trainer(doctor).fit(Tiny(), loader())
    assert doctor.session.telemetry is None
    assert doctor.session.missing["telemetry"] == "device_stats=False"


def test_probe_is_switched_off_and_training_goes_on_when_sampling_fails(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise OSError("planted")

    monkeypatch.setattr("lightning_perf.probes.telemetry.probe.open_gpu", fails)
    doctor = PerfDoctor(reports=[])
    make_trainer(doctor).fit(Tiny(), loader())
    assert doctor.session.run.status == "finished"
    assert [failure.probe for failure in doctor.session.probes_off] == ["telemetry"]


def test_cost_is_shown_only_when_a_price_is_given(make_trainer: Make) -> None:
    shown = {}
    for price in (None, 3.6):
        doctor = PerfDoctor(reports=[], price_per_hour=price)
        make_trainer(doctor, max_epochs=2).fit(Tiny(), loader())
        shown[price] = console.to_text(console.session_document(doctor.session))
    assert "per hour" not in shown[None]
    assert "a day" not in shown[None].lower()
    assert doctor.session.telemetry.cost.run_price == pytest.approx(doctor.session.run.wall_s / 1000)
    assert "per hour" in shown[3.6]


@pytest.mark.parametrize(
    "arguments",
    [{"price_per_hour": -1}, {"price_per_hour": "2"}, {"price_per_hour": True}, {"price_per_hour": float("nan")},
     {"gco2_per_kwh": -3}, {"gco2_per_kwh": "nowhere"}, {"gco2_per_kwh": float("inf")}],
)  # fmt: skip
def test_rate_is_refused_when_it_is_none(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        PerfDoctor(**arguments)
