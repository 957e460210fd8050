"""Read the device: utilization, memory, power, temperature, clocks, PCIe link, other processes."""

import importlib
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning_perf.cgroups import read_number
from lightning_perf.interrupts import error_text
from lightning_perf.records import GpuTelemetry

from .nvml import DeviceLostError, Driver, WantedDevice, device_links, find_device, text_of, wanted_device
from .series import Series

SLOW_READING_INTERVAL = 5
"""Throughput and processes are read once per this many samples: the driver takes 20 ms to measure throughput (NVML API
reference, nvmlDeviceGetPcieThroughput)."""

THROTTLE_REASONS = {
    0x002: "application_clocks", 0x004: "sw_power_cap", 0x008: "hw_slowdown", 0x010: "sync_boost", 0x020: "sw_thermal",
    0x040: "hw_thermal", 0x080: "hw_power_brake", 0x200: "board_limit", 0x400: "reliability",
}  # fmt: skip
"""Bits of nvmlClocksEventReasons*; 0x001 (idle) and 0x100 (follows a display) do not slow work down."""

_Figure = tuple[str, str, tuple[int, ...], float]
"""Name of a figure, NVML's function, further arguments (constants of ``nvml.h``), and factor to the figure's unit."""

_LIMITS: tuple[_Figure, ...] = (
    ("power_limit_w", "nvmlDeviceGetEnforcedPowerLimit", (), 1e-3),
    ("default_power_limit_w", "nvmlDeviceGetPowerManagementDefaultLimit", (), 1e-3),
    ("slowdown_temperature_c", "nvmlDeviceGetTemperatureThreshold", (1,), 1),  # NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
    ("max_sm_clock_mhz", "nvmlDeviceGetMaxClockInfo", (1,), 1),  # NVML_CLOCK_SM
    ("max_pcie_generation", "nvmlDeviceGetMaxPcieLinkGeneration", (), 1),
    ("max_pcie_width", "nvmlDeviceGetMaxPcieLinkWidth", (), 1),
)
_FIGURES: tuple[_Figure, ...] = (
    ("power_w", "nvmlDeviceGetPowerUsage", (), 1e-3),
    ("temperature_c", "nvmlDeviceGetTemperature", (0,), 1),  # NVML_TEMPERATURE_GPU
    ("sm_clock_mhz", "nvmlDeviceGetClockInfo", (1,), 1),  # NVML_CLOCK_SM
    ("memory_clock_mhz", "nvmlDeviceGetClockInfo", (2,), 1),  # NVML_CLOCK_MEM
    ("pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration", (), 1),
    ("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth", (), 1),
)
_SLOW_FIGURES: tuple[_Figure, ...] = (
    ("pcie_send_bytes_per_s", "nvmlDeviceGetPcieThroughput", (0,), 1e3),  # NVML_PCIE_UTIL_TX_BYTES
    ("pcie_receive_bytes_per_s", "nvmlDeviceGetPcieThroughput", (1,), 1e3),  # NVML_PCIE_UTIL_RX_BYTES
)


class GpuReader:
    """Samples one device. Reading and counting are separate, so that no lock is held during driver calls.

    Attributes:
        device: Its name in torch, e.g. ``"cuda:0"``.
        has_own_power: Whether ``power_w`` is its own, not that of the device which a MIG instance is a part of.
        lost_reason: Why it is no longer read; empty normally.
        missing: Why figures are None, by name.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.has_own_power = True
        self.lost_reason = ""
        self.missing: dict[str, str] = {}
        self._n_samples = 0
        self._series: dict[str, Series] = {}

    def read(self) -> dict[str, float]:
        """Return one sample by metric; empty once the device is lost. ``energy_j`` is a counter."""
        raise NotImplementedError

    def add(self, sample: Mapping[str, float], weight_s: float) -> None:
        """Add a sample that covers ``weight_s`` seconds."""
        self._n_samples += bool(sample)
        for name, value in sample.items():
            if name not in _NOT_SERIES:
                self._series.setdefault(name, Series()).add(value, weight_s)

    def record(self) -> GpuTelemetry:
        """Return the record of all samples."""
        raise NotImplementedError

    def close(self) -> None:
        """Release the driver."""

    def _spreads(self) -> dict[str, Any]:
        return {"n_samples": self._n_samples, **{name: series.spread() for name, series in self._series.items()}}


class NvmlReader(GpuReader):
    """Samples one device through NVML.

    ``family`` returns the ids of this process and its descendants. ``node_devices`` are those of all ranks on the node.

    Raises:
        LookupError: The device is not found.
        DeviceLostError: It is gone.
    """

    def __init__(
        self,
        driver: Driver,
        wanted: WantedDevice,
        environ: Mapping[str, str] = os.environ,
        root: Path = Path("/"),
        family: Callable[[], set[int]] = lambda: {os.getpid()},
        node_devices: Sequence[WantedDevice] = (),
    ) -> None:
        super().__init__(f"cuda:{wanted.index}")
        self.missing = driver.missing
        self._driver = driver
        self._family = family
        self._handle, self._matched_by = find_device(driver, wanted, environ)
        self._whole = self._whole_device()
        mode = driver.try_call("nvmlDeviceGetMigMode", self._handle)
        self._is_mig = self._whole is not self._handle or bool(mode and mode[0])
        self.has_own_power = not self._is_mig
        self._throttle_function = _throttle_function(driver, self._whole)
        self._n_reads = 0
        self._throttled_s: Counter[str] = Counter()
        self._throttle_known_s = 0.0
        self._link = (0, 0)
        self._others: dict[str, Any] = {}
        self._facts = self._read_facts(wanted, root)
        if len(node_devices) > 1:
            self._facts["links"] = device_links(driver, node_devices, environ)

    def close(self) -> None:
        # NVML counts its users.
        self._driver.try_call("nvmlShutdown")

    def read(self) -> dict[str, float]:
        if self.lost_reason:
            return {}
        self._n_reads += 1
        try:
            return self._read()
        except DeviceLostError as error:
            self.lost_reason = f"the device was lost during the run ({error})"
            return {}

    def add(self, sample: Mapping[str, float], weight_s: float) -> None:
        super().add(sample, weight_s)
        if "throttle_bits" in sample:
            self._throttle_known_s += weight_s
            bits = int(sample["throttle_bits"])
            self._throttled_s.update({reason: weight_s for bit, reason in THROTTLE_REASONS.items() if bits & bit})
        if sample.get("utilisation_fraction", 1.0) > 0:
            link = (int(sample.get("pcie_generation", 0)), int(sample.get("pcie_width", 0)))
            self._link = (max(self._link[0], link[0]), max(self._link[1], link[1]))
        if sample.get("other_processes", -1) > self._others.get("other_processes", -1):
            self._others = {n: int(sample[n]) for n in ("other_processes", "other_memory_bytes") if n in sample}

    def record(self) -> GpuTelemetry:
        known_s = self._throttle_known_s
        return GpuTelemetry(
            **self._facts,
            **self._spreads(),
            throttle_fractions={r: s / known_s for r, s in sorted(self._throttled_s.items())} if known_s else None,
            pcie_generation=self._link[0] or None,
            pcie_width=self._link[1] or None,
            **self._others,
        )

    def _whole_device(self) -> Any:
        if self._driver.try_call("nvmlDeviceIsMigDeviceHandle", self._handle):
            parent = self._driver.try_call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", self._handle)
            return self._handle if parent is None else parent
        return self._handle

    def _read_facts(self, wanted: WantedDevice, root: Path) -> dict[str, Any]:
        read, whole = self._driver.read_metric, self._whole
        bus = text_of(getattr(read("pci_bus_id", "nvmlDeviceGetPciInfo", whole), "busId", None))
        memory = read("memory_used_bytes", "nvmlDeviceGetMemoryInfo", self._handle)
        return {
            "device": self.device,
            "name": text_of(read("name", "nvmlDeviceGetName", self._handle)) or wanted.name,
            "source": "nvml",
            "matched_by": self._matched_by,
            "uuid": text_of(read("uuid", "nvmlDeviceGetUUID", self._handle)) or None,
            "pci_bus_id": bus or None,
            "is_mig": self._is_mig,
            "memory_total_bytes": None if memory is None else int(memory.total),
            "numa_node": _numa_node(bus, root),
            **self._read_figures(_LIMITS),
        }

    def _read(self) -> dict[str, float]:
        read, whole = self._driver.read_metric, self._whole
        values = self._read_figures(_FIGURES)
        values["throttle_bits"] = read("throttle_fractions", self._throttle_function, whole)
        memory = read("memory_used_bytes", "nvmlDeviceGetMemoryInfo", self._handle)
        values["memory_used_bytes"] = None if memory is None else memory.used
        if self._is_mig:
            reason = "this is a MIG instance: the driver counts the whole device only"
            self._driver.missing.update({"utilisation_fraction": reason, "energy": reason})
        else:
            use = read("utilisation_fraction", "nvmlDeviceGetUtilizationRates", whole)
            if use is not None:
                values |= {"utilisation_fraction": use.gpu / 100, "memory_utilisation_fraction": use.memory / 100}
            millijoules = read("energy", "nvmlDeviceGetTotalEnergyConsumption", whole)
            values["energy_j"] = None if millijoules is None else millijoules * 1e-3
        if self._n_reads % SLOW_READING_INTERVAL == 1:
            values |= self._read_figures(_SLOW_FIGURES) | self._read_others()
        return {name: float(value) for name, value in values.items() if value is not None}

    def _read_figures(self, figures: Sequence[_Figure]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, function, arguments, factor in figures:
            value = self._driver.read_metric(name, function, self._whole, *arguments)
            values[name] = value if value is None or factor == 1 else value * factor
        return values

    def _read_others(self) -> dict[str, int]:
        processes = self._driver.read_metric("other_processes", "nvmlDeviceGetComputeRunningProcesses", self._handle)
        if processes is None:
            return {}
        family = self._family()
        others = [process for process in processes if process.pid not in family]
        if len(others) == len(processes) and others:
            # Inside a container the driver reports ids of the host: one of these is this process itself.
            return {"other_processes": len(others) - 1}
        used = [process.usedGpuMemory for process in others]
        memory = {} if None in used else {"other_memory_bytes": sum(used)}
        return {"other_processes": len(others), **memory}


MOST_POWER_W = 5000.0
"""More than any device draws: larger values are milliwatts, as torch documents; up to 2.13 it returns watts."""


class TorchReader(GpuReader):
    """Samples an AMD device through torch's functions, which call amdsmi.

    ``cuda`` is ``torch.cuda`` or a replacement, ``index`` torch's.
    """

    def __init__(self, cuda: Any, index: int, name: str, memory_total_bytes: int) -> None:
        super().__init__(f"cuda:{index}")
        self._cuda, self._index = cuda, index
        self._name, self._memory_total_bytes = name, memory_total_bytes

    def read(self) -> dict[str, float]:
        sample = {}
        for metric, function, factor in _TORCH_FUNCTIONS:
            if metric in self.missing:
                continue
            try:
                value = float(getattr(self._cuda, function)(self._index)) * factor
            except Exception as error:  # noqa: BLE001 - recorded in missing; amdsmi has errors of many kinds
                self.missing[metric] = f"torch.cuda.{function}: {error_text(error)}"
                continue
            if metric != "power_w":
                sample[metric] = value
            elif value > 0:  # torch gives 0 for what amdsmi does not report
                sample[metric] = value / 1e3 if value > MOST_POWER_W else value
        return sample

    def record(self) -> GpuTelemetry:
        return GpuTelemetry(
            device=self.device,
            name=self._name,
            source="torch",
            matched_by="index",
            memory_total_bytes=self._memory_total_bytes,
            **self._spreads(),
        )


# By torch's documentation: percent, percent, milliwatts (in truth amdsmi's watts), degrees Celsius, MHz, bytes.
_TORCH_FUNCTIONS = (
    ("utilisation_fraction", "utilization", 0.01),
    ("memory_utilisation_fraction", "memory_usage", 0.01),
    ("power_w", "power_draw", 1.0),
    ("temperature_c", "temperature", 1.0),
    ("sm_clock_mhz", "clock_rate", 1.0),
    ("memory_used_bytes", "device_memory_used", 1.0),
)


_NOT_SERIES = {
    "throttle_bits", "pcie_generation", "pcie_width", "other_processes", "other_memory_bytes", "energy_j",
}  # fmt: skip


def open_gpu(
    device: Any, family: Callable[[], set[int]], torch: Any, nvml: Any = None, node_devices: Sequence[Any] = ()
) -> tuple[GpuReader | None, str]:
    """Return the reader of a device whose backend is initialized; None with the reason if there is none.

    ``torch`` and ``nvml`` can be replaced in tests; ``family`` as for ``NvmlReader``. ``node_devices`` are the
    ``torch.device`` of all ranks on this node.
    """
    if device.type == "cpu":
        return None, "the training runs on the CPU"
    if device.type != "cuda":
        return None, f"devices of type {device.type} report nothing"
    index = torch.cuda.current_device() if device.index is None else device.index
    properties = torch.cuda.get_device_properties(index)
    if getattr(torch.version, "hip", None) is not None:
        return TorchReader(torch.cuda, index, str(properties.name), int(properties.total_memory)), ""
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError as error:
            return None, f"nvidia-ml-py is not installed ({error}): pip install nvidia-ml-py"
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return None, f"NVML could not be started ({type(error).__name__}: {error})"
    driver = Driver(nvml)
    try:
        indices = sorted({each.index for each in node_devices if each.type == "cuda" and each.index is not None})
        wanted = [wanted_device(torch.cuda.get_device_properties(each), each) for each in indices]
        return NvmlReader(driver, wanted_device(properties, index), family=family, node_devices=wanted), ""
    except (LookupError, DeviceLostError) as error:
        driver.try_call("nvmlShutdown")
        return None, str(error)


def _throttle_function(driver: Driver, handle: Any) -> str:
    """Return the function's name, which changed in 2023: older bindings or drivers have the old one only."""
    new = "nvmlDeviceGetCurrentClocksEventReasons"
    return new if driver.try_call(new, handle) is not None else "nvmlDeviceGetCurrentClocksThrottleReasons"


def _numa_node(bus: str, root: Path) -> int | None:
    match = re.fullmatch(r"([0-9a-fA-F]+):([0-9a-fA-F]+:[0-9a-fA-F]+\.[0-9a-fA-F])", bus)
    if match is None:
        return None
    # sysfs writes four digits of the domain, NVML eight.
    folder = f"{int(match[1], 16):04x}:{match[2].lower()}"
    return read_number(root / "sys" / "bus" / "pci" / "devices" / folder / "numa_node")


def peak_share(device: Any) -> float:
    """Return the peak of reserved memory as a share of the device's memory; 0 on a CPU."""
    if device.type != "cuda":
        return 0.0
    import torch

    total = torch.cuda.get_device_properties(device).total_memory
    return float(torch.cuda.max_memory_reserved(device) / total)
