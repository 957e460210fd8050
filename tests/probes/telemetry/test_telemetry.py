"""Sampling: what it counts, when it stops, and that it leaves nothing behind."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningDataModule, LightningModule

from lightning_perf.probes.telemetry import probe as telemetry
from lightning_perf.probes.telemetry.gpu import NvmlReader
from lightning_perf.probes.telemetry.nvml import Driver, WantedDevice
from lightning_perf.probes.telemetry.probe import DEFAULT_HZ, FIRST_S, TelemetryProbe, pause_s

from .fake_nvml import ERRORS, FakeNvml, gpu


class Scripted:
    """A run whose clock and steps a test sets."""

    def __init__(self, reader: Any = None, host: Any = None) -> None:
        self.now_s, self.n_steps = 0.0, 0
        packages = SimpleNamespace(read=lambda: None, missing_reason="no RAPL")
        self.probe = TelemetryProbe(
            host, reader, packages, now_ns=lambda: int(self.now_s * 1e9), start_ns=0, step=lambda: self.n_steps
        )  # fmt: skip

    def sample(self, at_s: float, n_steps: int) -> None:
        self.now_s, self.n_steps = at_s, n_steps
        self.probe.sample()


def device(**changes: Any) -> NvmlReader:
    return NvmlReader(Driver(FakeNvml(gpu(0, **changes))), WantedDevice(index=0, name="H100"), environ={})


def telemetry_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if "telemetry" in thread.name]


@pytest.mark.parametrize("n", [0, 2])
def test_devices_of_all_ranks_on_the_node_are_handed_on_when_the_strategy_knows_them(
    n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def no_gpu(*_: Any, node_devices: Any) -> tuple[None, str]:
        asked.append(list(node_devices))
        return None, "none here"

    monkeypatch.setattr(telemetry, "open_gpu", no_gpu)
    devices = [torch.device("cuda", i) for i in range(n)]
    several = {"parallel_devices": devices} if n else {}
    strategy = SimpleNamespace(root_device=torch.device("cpu"), **several)
    loop = SimpleNamespace(timeline=SimpleNamespace(start_ns=0), main=SimpleNamespace(n_steps=0), fetch_watch=None)
    run = SimpleNamespace(
        options=SimpleNamespace(device_stats=True),
        loop=loop,
        trainer=SimpleNamespace(strategy=strategy),
        now_ns=lambda: 0,
        missing={},
    )
    probe = TelemetryProbe.open(run)
    probe.close()
    assert asked == [devices]


def test_samples_count_from_the_first_step_on_when_the_run_starts_slowly() -> None:
    run = Scripted(device(UtilizationRates=[SimpleNamespace(gpu=g, memory=0) for g in (0, 0, 80, 90)]))
    for at_s, n_steps in ((1, 0), (2, 0), (3, 1), (5, 9)):
        run.sample(at_s, n_steps)
    record = run.probe.record()
    assert record.devices[0].n_samples == 2
    assert record.devices[0].utilisation_fraction.mean == pytest.approx((0.8 + 2 * 0.9) / 3)
    assert [(point.start_s, point.step) for point in record.timeline] == [(0, 0), (1, 0), (2, 1), (3, 9)]
    assert record.timeline[3].values["cuda:0 utilisation_fraction"] == 0.9


def test_energy_is_integrated_within_one_percent_when_there_is_no_counter() -> None:
    watts = [200_000, 300_000, 400_000, 300_000, 200_000]
    run = Scripted(device(PowerUsage=list(watts), TotalEnergyConsumption=ERRORS["NotSupported"]("scripted")))
    for i in range(5):
        run.sample(float(i), 1)
    energy = run.probe.record().energy
    assert energy.gpu_j == pytest.approx(1200.0, rel=0.01)
    assert energy.gpu_basis == "integrated power"
    assert energy.cpu_j is None
    assert run.probe.reasons()["telemetry.energy.cpu_j"] == "no RAPL"
    assert "NotSupported" in run.probe.reasons()["telemetry.devices.cuda:0.energy"]


def test_energy_of_a_mig_instance_is_unknown_because_power_is_the_whole_devices() -> None:
    run = Scripted(device(MigMode=[1, 1]))
    for i in range(3):
        run.sample(float(i), 1)
    record = run.probe.record()
    assert record.devices[0].power_w.mean == 300.0
    assert record.energy is None
    assert "MIG" in run.probe.reasons()["telemetry.devices.cuda:0.energy"]


def test_samples_do_not_count_while_perfdoctor_uses_the_cores() -> None:
    run = Scripted(device(UtilizationRates=[SimpleNamespace(gpu=g, memory=0) for g in (50, 1, 2, 3, 90)]))
    run.sample(1.0, 1)
    run.probe.leave_out(True)
    run.sample(2.0, 1)
    run.sample(3.0, 1)
    run.probe.leave_out(False)
    run.sample(4.0, 1)  # began before
    run.sample(5.0, 2)
    record = run.probe.record()
    assert record.devices[0].n_samples == 2
    assert record.devices[0].utilisation_fraction.mean == pytest.approx((0.5 + 0.9) / 2)


def test_energy_is_none_when_nothing_is_metered() -> None:
    run = Scripted()
    run.sample(1.0, 1)
    assert run.probe.record().energy is None


def test_reason_is_reported_when_the_device_is_lost_during_the_run() -> None:
    run = Scripted(device(Temperature=[50, ERRORS["GpuIsLost"]("scripted")]))
    for i in range(1, 4):
        run.sample(float(i), 1)
    assert run.probe.record().devices[0].n_samples == 1
    assert "GpuIsLost" in run.probe.reasons()["telemetry.devices.cuda:0"]


def test_thread_ends_when_stopped_and_stopping_twice_does_no_harm() -> None:
    run = Scripted()
    run.probe.start()
    assert len(telemetry_threads()) == 1
    assert telemetry_threads()[0].daemon
    run.probe.close()
    assert telemetry_threads() == []
    run.probe.close()


def test_readers_stay_open_when_the_driver_does_not_answer_however_often_the_probe_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, answered = threading.Event(), threading.Event()
    n_closed = 0

    def read(at_s: float) -> dict[str, float]:
        if threading.current_thread() is not threading.main_thread():
            asked.set()
            answered.wait(60)
        return {}

    def close() -> None:
        nonlocal n_closed
        n_closed += 1

    run = Scripted(host=SimpleNamespace(read=read, add=lambda *_: None, close=close))
    monkeypatch.setattr(run.probe._background, "_join_s", 0.1)
    run.probe.start()
    assert asked.wait(60)
    run.probe.close()
    run.probe.close()
    assert n_closed == 0
    answered.set()
    telemetry_threads()[0].join(60)
    run.probe.close()
    assert n_closed == 1


def test_error_is_kept_and_the_thread_ends_when_a_reader_raises() -> None:
    begun = threading.Event()

    def read(at_s: float) -> dict[str, float]:
        if threading.current_thread() is threading.main_thread():
            return {}
        begun.set()
        raise RuntimeError("scripted")

    run = Scripted(host=SimpleNamespace(read=read, add=lambda *_: None, close=lambda: None))
    run.probe.start()
    assert begun.wait(10)
    run.probe.close()
    assert isinstance(run.probe.error, RuntimeError)
    assert telemetry_threads() == []


def test_readers_are_released_when_the_run_ends() -> None:
    reader = device()
    nvml = reader._driver.nvml
    nvml.nvmlInit()
    run = Scripted(reader)
    run.probe.start()
    run.probe.close()
    run.probe.close()
    assert nvml.users == 0


@pytest.mark.parametrize("cost_s", [0.0, 0.0002, 0.005, 0.02, 0.3])
def test_sampling_takes_half_a_percent_of_a_core_at_most_whatever_a_sample_costs(cost_s: float) -> None:
    assert cost_s <= 0.005 * pause_s(FIRST_S, cost_s)
    assert cost_s <= 0.01 * pause_s(0.0, cost_s)  # of the first seconds
    assert pause_s(FIRST_S, 0.0) == 1 / DEFAULT_HZ


@pytest.mark.parametrize(
    ("batch", "n_bytes", "n_objects", "entry"),
    [
        ({"x": torch.zeros(4, 2), "meta": ["name", (torch.zeros(3, dtype=torch.uint8),)]}, 35, 6, '["meta"]'),
        ((torch.zeros(4, 2), [0.5, 0.5]), 32, 5, "[1]"),
        (torch.eye(1000).to_sparse(), 20_000, 1, ""),
        ("no tensor", None, 1, ""),
        ([[0.5] * 100] * 100, None, 1000, ""),
        ([[0.5] * 40, *[[0.5]] * 29], None, 100, ""),  # whose entries are not all counted
        ({}, None, 1, ""),
    ],
)
def test_first_batch_is_measured_by_its_tensors_and_objects(
    batch: Any, n_bytes: int | None, n_objects: int, entry: str
) -> None:
    run = Scripted(host=SimpleNamespace(record=lambda extra: extra, read=lambda at: {}, missing={}))
    run.probe.first_batch(batch)
    host = run.probe.record().host
    assert (host["batch_bytes"], host["batch_objects"], host["batch_entry"]) == (n_bytes, n_objects, entry)


@pytest.mark.parametrize("where", ["module", "datamodule", ""])
def test_objects_are_counted_only_where_lightning_searches_the_batch(where: str) -> None:
    class Moves(LightningModule if where == "module" else LightningDataModule):
        def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
            return batch

    module = Moves() if where == "module" else LightningModule()
    trainer = SimpleNamespace(train_dataloader=None, datamodule=Moves() if where == "datamodule" else None)
    run = Scripted(host=SimpleNamespace(record=lambda extra: extra, read=lambda at: {}, missing={}))
    run.probe.loops_ready(SimpleNamespace(pl_module=module, trainer=trainer, stage="fit"))  # type: ignore[arg-type]
    run.probe.first_batch([torch.zeros(2)] * 3)
    assert run.probe.record().host["batch_objects"] == (None if where else 4)
