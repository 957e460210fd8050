"""The device, read from a scripted driver."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lightning_perf.probes.telemetry.gpu import NvmlReader, TorchReader, open_gpu
from lightning_perf.probes.telemetry.nvml import DeviceLostError, Driver, WantedDevice, find_device, wanted_device

from .fake_nvml import ERRORS, FakeNvml, gpu

ME = os.getpid()


def reader(nvml: Any, wanted: WantedDevice | None = None, root: Path = Path("/nowhere")) -> NvmlReader:
    wanted = wanted or WantedDevice(index=0, name="NVIDIA H100", uuid="0000-aaaa")
    return NvmlReader(Driver(nvml), wanted, environ={}, root=root, family=lambda: {ME})


def sampled(nvml: Any, n: int = 6) -> NvmlReader:
    made = reader(nvml)
    for _ in range(n):
        made.add(made.read(), 1.0)
    return made


def process(pid: int, used: int | None = 2**30) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=used)


# -- matching ------------------------------------------------------------


def found(nvml: Any, index: int = 0, uuid: str | None = None, bus: str | None = None, **environ: str) -> Any:
    wanted = WantedDevice(index=index, name="x", uuid=uuid, pci_bus_id=bus)
    handle, how = find_device(Driver(nvml), wanted, environ)
    return nvml.devices.index(handle), how


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({"uuid": "1111-aaaa", "CUDA_VISIBLE_DEVICES": "1"}, (1, "uuid")),  # indices are remapped
        ({"bus": "00000000:02:00.0"}, (1, "pci")),
        ({"CUDA_VISIBLE_DEVICES": "1"}, (1, "visible devices")),
        ({"CUDA_VISIBLE_DEVICES": "1,0", "index": 1}, (0, "visible devices")),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1111"}, (1, "visible devices")),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1111-aaaa"}, (1, "visible devices")),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1111,GPU-0000", "index": 1}, (0, "visible devices")),
        ({"index": 1}, (1, "index")),
    ],
)
def test_device_is_found_by_the_most_reliable_name_that_is_known(known: Any, expected: tuple[int, str]) -> None:
    assert found(FakeNvml(gpu(0), gpu(1)), **known) == expected


def test_device_is_not_guessed_when_devices_differ_and_cuda_orders_them_by_speed() -> None:
    nvml = FakeNvml(gpu(0), gpu(1, Name="NVIDIA T4"))
    with pytest.raises(LookupError, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        found(nvml, index=1)
    assert found(nvml, index=1, CUDA_DEVICE_ORDER="PCI_BUS_ID") == (1, "index")


@pytest.mark.parametrize("visible", ["GPU-", "GPU-9"])
def test_device_is_not_guessed_when_a_short_uuid_fits_none_or_several(visible: str) -> None:
    with pytest.raises(LookupError, match="fits"):
        found(FakeNvml(gpu(0), gpu(1)), CUDA_VISIBLE_DEVICES=visible)


def test_device_is_not_found_when_the_container_shows_fewer() -> None:
    with pytest.raises(LookupError, match="shows 1 devices"):
        found(FakeNvml(gpu(0)), index=3)


def test_wanted_device_has_bus_and_uuid_when_torch_reports_them() -> None:
    told = SimpleNamespace(name="H100", uuid="0000-aaaa", pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0)
    assert wanted_device(told, 2) == WantedDevice(index=2, name="H100", uuid="0000-aaaa", pci_bus_id="00000000:3B:00.0")
    assert wanted_device(SimpleNamespace(name="H100"), 0).pci_bus_id is None


# -- figures ------------------------------------------------------------


def test_record_has_every_figure_when_the_driver_reports_all(tmp_path: Path) -> None:
    folder = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text("1\n")
    nvml = FakeNvml(gpu(0, ComputeRunningProcesses=[process(ME), process(7), process(8)]))
    made = reader(nvml, root=tmp_path)
    sample = made.read()
    made.add(sample, 1.0)
    record = made.record()
    assert sample["energy_j"] == 5000.0
    assert record.device == "cuda:0"
    assert (record.uuid, record.pci_bus_id, record.numa_node) == ("GPU-0000-aaaa", "00000000:01:00.0", 1)
    assert record.utilisation_fraction.mean == 0.9
    assert record.memory_utilisation_fraction.mean == 0.4
    assert record.memory_used_bytes.mean == 20 * 2**30
    assert record.memory_total_bytes == 80 * 2**30
    assert record.power_w.mean == 300.0
    assert (record.power_limit_w, record.default_power_limit_w) == (400.0, 700.0)
    assert (record.temperature_c.mean, record.slowdown_temperature_c) == (60.0, 95)
    assert (record.sm_clock_mhz.mean, record.max_sm_clock_mhz) == (1500.0, 2000)
    assert (record.pcie_generation, record.pcie_width) == (5, 16)
    assert record.pcie_receive_bytes_per_s.mean == 1e6
    assert (record.other_processes, record.other_memory_bytes) == (2, 2 * 2**30)
    assert record.throttle_fractions == {}
    assert made.missing == {}


def test_throttling_is_reported_as_share_of_time_when_the_driver_gives_reasons() -> None:
    nvml = FakeNvml(gpu(0, CurrentClocksEventReasons=[0, 0x20 | 0x4, 0x4, 0x1, 0x4, 0]))
    fractions = sampled(nvml, 5).record().throttle_fractions
    assert fractions == {"sw_power_cap": pytest.approx(3 / 5), "sw_thermal": pytest.approx(1 / 5)}


@pytest.mark.parametrize("absent", [(), ("nvmlDeviceGetCurrentClocksEventReasons",)], ids=["driver", "bindings"])
def test_throttling_is_read_by_its_old_name_when_driver_or_bindings_are_old(absent: tuple[str, ...]) -> None:
    device = gpu(0, CurrentClocksThrottleReasons=8, CurrentClocksEventReasons=ERRORS["FunctionNotFound"]())
    assert sampled(FakeNvml(device, absent=absent)).record().throttle_fractions == {"hw_slowdown": 1.0}


@pytest.mark.parametrize("kind", ["NotSupported", "NoPermission", "FunctionNotFound"])
def test_figure_is_missing_with_its_reason_when_the_driver_refuses(kind: str) -> None:
    nvml = FakeNvml(gpu(0, PowerUsage=ERRORS[kind]("scripted"), TotalEnergyConsumption=ERRORS[kind]("scripted")))
    made = sampled(nvml)
    assert made.record().power_w is None
    assert kind in made.missing["power_w"]
    assert kind in made.missing["energy"]
    assert nvml.calls.count("nvmlDeviceGetPowerUsage") == 1  # not requested again
    assert made.record().temperature_c.n == 6


def test_figure_stays_when_an_error_passes() -> None:
    nvml = FakeNvml(gpu(0, PowerUsage=[ERRORS["Timeout"](), ERRORS["Unknown"](), 200_000]))
    made = sampled(nvml)
    assert made.record().power_w.n == 4
    assert made.missing == {}


def test_figure_is_given_up_when_an_error_does_not_pass() -> None:
    nvml = FakeNvml(gpu(0, PowerUsage=ERRORS["Unknown"]("scripted")))
    assert "Unknown" in sampled(nvml).missing["power_w"]
    assert nvml.calls.count("nvmlDeviceGetPowerUsage") == 3


def test_function_is_missing_with_its_reason_when_the_bindings_lack_it() -> None:
    made = sampled(FakeNvml(gpu(0), absent=("nvmlDeviceGetPcieThroughput",)))
    assert "no nvmlDeviceGetPcieThroughput" in made.missing["pcie_send_bytes_per_s"]


def test_samples_stay_when_the_device_is_lost() -> None:
    nvml = FakeNvml(gpu(0, Temperature=[60, 60, ERRORS["GpuIsLost"]("scripted")]))
    made = sampled(nvml)
    assert made.record().n_samples == 2
    assert "GpuIsLost" in made.lost_reason
    n_calls = len(nvml.calls)
    assert made.read() == {}
    assert len(nvml.calls) == n_calls


def test_link_is_the_fastest_seen_when_it_slows_down_while_idle() -> None:
    idle, busy = SimpleNamespace(gpu=0, memory=0), SimpleNamespace(gpu=50, memory=0)
    nvml = FakeNvml(gpu(0, UtilizationRates=[idle, busy, idle], CurrPcieLinkGeneration=[5, 3, 1]))
    assert sampled(nvml, 3).record().pcie_generation == 3


def test_others_leave_this_process_out_when_a_container_hides_its_id() -> None:
    alone = sampled(FakeNvml(gpu(0, ComputeRunningProcesses=[process(4242)]))).record()
    shared = sampled(FakeNvml(gpu(0, ComputeRunningProcesses=[process(4242), process(4243)]))).record()
    assert (alone.other_processes, shared.other_processes) == (0, 1)
    assert shared.other_memory_bytes is None


def test_mig_instance_has_memory_of_its_own_and_no_utilisation_or_energy() -> None:
    whole = gpu(0, MigMode=[1, 1])
    part = {"UUID": "MIG-77", "Name": "H100 MIG 1g.10gb", "PciInfo": whole["PciInfo"], "parent": whole,
            "MemoryInfo": SimpleNamespace(total=10 * 2**30, used=2**30), "ComputeRunningProcesses": []}  # fmt: skip
    wanted = WantedDevice(index=0, name="H100 MIG 1g.10gb", uuid="0000-aaaa")
    nvml = FakeNvml(whole, part)
    made = NvmlReader(Driver(nvml), wanted, environ={"CUDA_VISIBLE_DEVICES": "MIG-77"}, root=Path("/nowhere"))
    made.add(made.read(), 1.0)
    record = made.record()
    assert (record.is_mig, record.uuid, record.memory_total_bytes) == (True, "MIG-77", 10 * 2**30)
    assert record.power_w.mean == 300.0  # the whole device's
    assert record.utilisation_fraction is None
    assert "energy_j" not in made.read()
    assert "MIG" in made.missing["utilisation_fraction"]


# -- links between the devices of a node ------------------------------------------------------------

WANTED = tuple(WantedDevice(index=i, name="NVIDIA H100", uuid=f"{4 * str(i)}-aaaa") for i in range(3))


def links_of(*devices: dict[str, Any], n: int = 2, **nvml: Any) -> tuple[Any, dict[str, str]]:
    fake = FakeNvml(*devices, **nvml)
    made = NvmlReader(Driver(fake), WANTED[0], environ={}, root=Path("/nowhere"), node_devices=WANTED[:n])
    return made.record().links, made.missing


def test_links_have_level_and_nvlink_of_all_pairs_when_ranks_use_several_devices() -> None:
    first = gpu(0, TopologyCommonAncestor={"GPU-2222-aaaa": 50}, P2PStatus={"GPU-1111-aaaa": 0})
    links, missing = links_of(first, gpu(1, TopologyCommonAncestor={"GPU-2222-aaaa": 40}), gpu(2), n=3)
    assert [(each.devices, each.ancestor_level, each.has_nvlink) for each in links] == [
        (("cuda:0", "cuda:1"), 10, True),
        (("cuda:0", "cuda:2"), 50, False),
        (("cuda:1", "cuda:2"), 40, False),
    ]
    assert missing == {}


def test_links_are_not_read_when_ranks_use_one_device() -> None:
    fake = FakeNvml(gpu(0), gpu(1))
    made, _ = opened(fake, node_devices=[SimpleNamespace(type="cuda", index=0)])
    assert made.record().links is None
    assert "links" not in made.missing
    assert "nvmlDeviceGetTopologyCommonAncestor" not in fake.calls


def test_links_are_read_when_the_strategy_has_several_devices() -> None:
    made, _ = opened(FakeNvml(gpu(0), gpu(1)), node_devices=[SimpleNamespace(type="cuda", index=i) for i in (1, 0)])
    assert [each.devices for each in made.record().links] == [("cuda:0", "cuda:1")]


@pytest.mark.parametrize(
    ("kind", "says"), [("NotSupported", "NotSupported"), ("GpuIsLost", "GpuIsLost"), ("Unknown", "did not answer")]
)
def test_links_are_missing_with_their_reason_when_the_driver_has_none(kind: str, says: str) -> None:
    links, missing = links_of(gpu(0, TopologyCommonAncestor=ERRORS[kind]("scripted")), gpu(1))
    assert links is None
    assert says in missing["links"]


def test_links_are_missing_with_their_reason_when_another_device_is_not_found() -> None:
    links, missing = links_of(gpu(0))
    assert links is None
    assert "shows 1 devices" in missing["links"]


def test_nvlink_is_unknown_with_its_reason_when_the_bindings_are_old() -> None:
    links, missing = links_of(gpu(0), gpu(1), absent=("nvmlDeviceGetP2PStatus",))
    assert (links[0].ancestor_level, links[0].has_nvlink) == (10, None)
    assert "nvmlDeviceGetP2PStatus" in missing["links.has_nvlink"]


# -- opening ------------------------------------------------------------


def torch_with(**properties: Any) -> Any:
    def told(index: int) -> SimpleNamespace:
        return SimpleNamespace(name="NVIDIA H100", total_memory=1, uuid=f"{4 * str(index)}-aaaa", **properties)

    cuda = SimpleNamespace(current_device=lambda: 0, get_device_properties=told)
    return SimpleNamespace(cuda=cuda, version=SimpleNamespace(hip=None))


def opened(nvml: Any, kind: str = "cuda", torch: Any = None, node_devices: Any = ()) -> tuple[Any, str]:
    return open_gpu(SimpleNamespace(type=kind, index=0), set, torch or torch_with(), nvml, node_devices)


@pytest.mark.parametrize("kind", ["LibraryNotFound", "DriverNotLoaded", "NoPermission"])
def test_there_is_a_reason_when_nvml_does_not_start(kind: str) -> None:
    made, reason = opened(FakeNvml(init=kind))
    assert made is None
    assert kind in reason


def test_nvml_is_released_when_the_device_is_not_found_or_gone() -> None:
    for nvml in (
        FakeNvml(),
        FakeNvml(gpu(0, PciInfo=SimpleNamespace(busId="x"), Name=ERRORS["GpuIsLost"]("scripted"))),
    ):
        made, reason = opened(nvml)
        assert made is None
        assert reason
        assert nvml.users == 0


def test_nvml_is_released_when_the_reader_is_closed() -> None:
    nvml = FakeNvml(gpu(0))
    made, _ = opened(nvml)
    assert nvml.users == 1
    made.close()
    assert nvml.users == 0


@pytest.mark.parametrize("kind", ["cpu", "mps"])
def test_nothing_is_read_when_the_device_is_of_another_kind(kind: str) -> None:
    made, reason = opened(FakeNvml(gpu(0)), kind)
    assert made is None
    assert reason


def test_lost_device_is_an_error_when_it_is_read() -> None:
    with pytest.raises(DeviceLostError, match="GpuIsLost"):
        Driver(FakeNvml(gpu(0))).read_metric("x", "nvmlDeviceGetName", {"Name": ERRORS["GpuIsLost"]("scripted")})


# -- AMD ------------------------------------------------------------


def test_amd_device_is_read_through_torch_when_it_has_figures() -> None:
    torch = torch_with()
    torch.version.hip = "6.0"
    figures = {"utilization": 80, "memory_usage": 30, "temperature": 70, "clock_rate": 1700, "device_memory_used": 5}
    for name, value in figures.items():
        setattr(torch.cuda, name, lambda index, value=value: value)
    torch.cuda.power_draw = lambda index: 500
    made, _ = opened(None, torch=torch)
    assert isinstance(made, TorchReader)
    made.add(made.read(), 1.0)
    record = made.record()
    assert record.utilisation_fraction.mean == pytest.approx(0.8)
    assert record.power_w.mean == 500
    assert record.source == "torch"


def test_amd_figures_are_missing_with_their_reason_when_amdsmi_is_not_installed() -> None:
    def fails(index: int) -> int:
        raise ModuleNotFoundError("amdsmi does not seem to be installed")

    made = TorchReader(SimpleNamespace(utilization=fails, power_draw=lambda index: 0), 0, "MI300", 1)
    assert made.read() == {}
    assert "amdsmi" in made.missing["utilisation_fraction"]
    assert "AttributeError" in made.missing["temperature_c"]
