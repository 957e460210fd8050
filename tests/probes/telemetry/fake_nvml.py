"""A stand-in for ``pynvml``: the same function names, scripted values and errors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    pass


def _error(kind: str) -> type[NVMLError]:
    return type(f"NVMLError_{kind}", (NVMLError,), {})


KINDS = (
    "NotSupported", "NoPermission", "NotFound", "FunctionNotFound", "GpuIsLost", "LibraryNotFound", "DriverNotLoaded",
    "Unknown", "Timeout", "InvalidArgument", "Uninitialized",
)  # fmt: skip
ERRORS = {kind: _error(kind) for kind in KINDS}


def gpu(index: int, **changes: Any) -> dict[str, Any]:
    """A healthy device by what each function answers; a list is a script, its last entry stays.

    Answers of functions of two devices are a dictionary by the other's UUID. By default devices share a PCIe switch and
    have no NVLink.
    """
    return {
        "UUID": f"GPU-{index}{index}{index}{index}-aaaa",
        "Name": "NVIDIA H100",
        "PciInfo": SimpleNamespace(busId=f"00000000:0{index + 1}:00.0"),
        "UtilizationRates": SimpleNamespace(gpu=90, memory=40),
        "MemoryInfo": SimpleNamespace(total=80 * 2**30, used=20 * 2**30),
        "PowerUsage": 300_000,
        "EnforcedPowerLimit": 400_000,
        "PowerManagementDefaultLimit": 700_000,
        "Temperature": 60,
        "TemperatureThreshold": 95,
        "ClockInfo": 1500,
        "MaxClockInfo": 2000,
        "CurrentClocksEventReasons": 0,
        "CurrPcieLinkGeneration": 5,
        "CurrPcieLinkWidth": 16,
        "MaxPcieLinkGeneration": 5,
        "MaxPcieLinkWidth": 16,
        "PcieThroughput": 1000,
        "TotalEnergyConsumption": 5_000_000,
        "ComputeRunningProcesses": [],
        "MigMode": [0, 0],
        "TopologyCommonAncestor": {},
        "P2PStatus": {},
        **changes,
    }


class FakeNvml:
    """Answers as NVML does for the given devices.

    Args:
        devices: As ``gpu`` makes them. ``"parent"`` makes one a MIG instance of another.
        init: Kind of the error that ``nvmlInit`` raises; None for none.
        absent: Functions that these bindings do not have.
    """

    NVMLError = NVMLError

    def __init__(self, *devices: dict[str, Any], init: str | None = None, absent: tuple[str, ...] = ()) -> None:
        self.devices = list(devices)
        self.users = 0
        self.calls: list[str] = []
        self._init, self._absent = init, absent

    def __getattr__(self, name: str) -> Any:
        if name in self._absent or not name.startswith("nvmlDeviceGet"):
            raise AttributeError(name)
        if name in ("nvmlDeviceGetTopologyCommonAncestor", "nvmlDeviceGetP2PStatus"):
            return lambda handle, other, *cap: self._of_pair(handle, other, name, cap)
        return lambda handle, *_: self._answer(handle, name)

    def _of_pair(self, device: dict[str, Any], other: dict[str, Any], name: str, cap: tuple[int, ...]) -> Any:
        answers = self._answer(device, name)
        if name == "nvmlDeviceGetTopologyCommonAncestor":
            return answers.get(other["UUID"], 10)
        # Over PCIe both may read each other's memory: only capability 2 is about NVLink.
        return answers.get(other["UUID"], 5) if cap == (2,) else 0

    def _answer(self, device: dict[str, Any], name: str) -> Any:
        self.calls.append(name)
        value = device.get(name.removeprefix("nvmlDeviceGet"), ERRORS["NotSupported"]())
        if isinstance(value, list) and name not in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetMigMode"):
            value = value.pop(0) if len(value) > 1 else value[0]
        if isinstance(value, Exception):
            raise value
        return value

    def nvmlInit(self) -> None:
        if self._init is not None:
            raise ERRORS[self._init]("scripted")
        self.users += 1

    def nvmlShutdown(self) -> None:
        self.users -= 1

    def nvmlDeviceGetCount(self) -> int:
        return sum("parent" not in device for device in self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        return [device for device in self.devices if "parent" not in device][index]

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes) -> Any:
        return self._only(device["UUID"] == uuid.decode() for device in self.devices)

    def nvmlDeviceGetHandleByPciBusId(self, bus: bytes) -> Any:
        return self._only(device["PciInfo"].busId == bus.decode() for device in self.devices)

    def nvmlDeviceIsMigDeviceHandle(self, device: Any) -> bool:
        return "parent" in device

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, device: Any) -> Any:
        return device["parent"]

    def _only(self, fits: Any) -> Any:
        for device, is_it in zip(self.devices, fits, strict=True):
            if is_it:
                return device
        raise ERRORS["NotFound"]("scripted")
