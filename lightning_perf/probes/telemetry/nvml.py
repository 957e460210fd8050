"""Call NVIDIA's management library (NVML), and find torch's device in it."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from lightning_perf.records import DeviceLink

TRIES = 3
"""Consecutive transient failures after which a metric is not requested again."""
_PERMANENT = ("NotSupported", "NoPermission", "FunctionNotFound", "InvalidArgument", "ArgumentVersionMismatch",
             "LibraryMismatchError")  # fmt: skip
_LOST = ("GpuIsLost", "ResetRequired", "Uninitialized", "DriverNotLoaded")


class DeviceLostError(Exception):
    """Raised when the driver no longer reaches the device."""


class WantedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device as torch identifies it: ``uuid`` without prefix, ``pci_bus_id`` as NVML writes it."""

    index: int
    name: str
    uuid: str | None = None
    pci_bus_id: str | None = None


def wanted_device(properties: Any, index: int) -> WantedDevice:
    """Read ``torch.cuda.get_device_properties(index)``; older versions of torch have neither UUID nor bus."""
    uuid = getattr(properties, "uuid", None)
    bus: list[Any] = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    return WantedDevice(
        index=index,
        name=str(properties.name),
        uuid=None if uuid is None else str(uuid).removeprefix("GPU-").removeprefix("MIG-"),
        pci_bus_id=None if None in bus else f"{bus[0]:08X}:{bus[1]:02X}:{bus[2]:02X}.0",
    )


class Driver:
    """NVML with a single kind of error, for a lost device; functions without an answer return None.

    ``nvml`` is the initialized module ``pynvml``, or a replacement with the same functions and errors.
    """

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        # Bindings that do not match the driver's version raise errors of other types.
        mismatch = getattr(nvml, "NVMLLibraryMismatchError", None)
        self._errors: tuple[type[Exception], ...] = (nvml.NVMLError, *([mismatch] if mismatch else []))
        self.missing: dict[str, str] = {}
        self._failures: Counter[str] = Counter()

    def read_metric(self, metric: str, function: str, *arguments: Any) -> Any:
        """Call a function of NVML for a metric; return None if it has no answer.

        Once a metric fails for good, it is not requested again, and ``missing`` says why.

        Raises:
            DeviceLostError: The device is gone.
        """
        if metric in self.missing:
            return None
        call = getattr(self.nvml, function, None)
        if call is None:
            self.missing[metric] = f"the installed nvidia-ml-py has no {function}"
            return None
        try:
            answer = call(*arguments)
        except self._errors as error:
            kind = type(error).__name__.removeprefix("NVMLError_").removeprefix("NVML")
            if kind in _LOST:
                raise DeviceLostError(f"{kind}: {error}") from error
            self._failures[metric] += 1
            if kind in _PERMANENT or self._failures[metric] >= TRIES:
                self.missing[metric] = f"the driver answers {kind} ({error})"
            return None
        self._failures[metric] = 0
        return answer

    def try_call(self, function: str, *arguments: Any) -> Any:
        """Call a function of NVML; return None if it fails, without counting the failure."""
        call = getattr(self.nvml, function, None)
        try:
            return None if call is None else call(*arguments)
        except self._errors:
            return None


def find_device(driver: Driver, wanted: WantedDevice, environ: Mapping[str, str]) -> tuple[Any, str]:
    """Return the handle of torch's device, and how it was found.

    UUIDs and bus ids are reliable. An index is reliable only if CUDA counts devices by bus as NVML does
    (``CUDA_DEVICE_ORDER=PCI_BUS_ID``), or if all devices are the same model.

    Raises:
        LookupError: The device is ambiguous; the message says why and what to do.
    """
    entries = [entry.strip() for entry in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if entry.strip()]
    entry = entries[wanted.index] if wanted.index < len(entries) else ""
    # A MIG instance has a UUID of its own, but torch may report that of its parent device.
    by_uuid: list[tuple[str, str]] = [(entry, "visible devices")] if entry.startswith("MIG-") else []
    by_uuid += [(f"{prefix}{wanted.uuid}", "uuid") for prefix in ("GPU-", "MIG-") if wanted.uuid]
    for uuid, basis in by_uuid:
        if (handle := driver.try_call("nvmlDeviceGetHandleByUUID", uuid.encode())) is not None:
            return handle, basis
    if wanted.pci_bus_id:
        handle = driver.try_call("nvmlDeviceGetHandleByPciBusId", wanted.pci_bus_id.encode())
        if handle is not None:
            return handle, "pci"
    n_devices = driver.try_call("nvmlDeviceGetCount") or 0
    handles = [driver.try_call("nvmlDeviceGetHandleByIndex", i) for i in range(n_devices)]
    if entry and not entry.isdecimal():  # a UUID may be abbreviated while it is unique
        alike = [h for h in handles if text_of(driver.try_call("nvmlDeviceGetUUID", h)).startswith(entry)]
        if len(alike) == 1:
            return alike[0], "visible devices"
        raise LookupError(f"CUDA_VISIBLE_DEVICES={entry!r} fits {len(alike)} devices of the driver")
    index = int(entry) if entry else wanted.index
    if index >= len(handles) or handles[index] is None:
        raise LookupError(f"the driver shows {n_devices} devices, torch uses number {index}")
    names = {text_of(driver.try_call("nvmlDeviceGetName", h)) for h in handles}
    if len(names) > 1 and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        raise LookupError("devices differ and CUDA counts them by speed: set CUDA_DEVICE_ORDER=PCI_BUS_ID")
    return handles[index], "visible devices" if entry else "index"


def device_links(
    driver: Driver, devices: Sequence[WantedDevice], environ: Mapping[str, str]
) -> tuple[DeviceLink, ...] | None:
    """Return how devices of one node are connected, in pairs; None with the reason in ``driver.missing``."""
    links = []
    try:
        handles = [find_device(driver, wanted, environ)[0] for wanted in devices]
        for (one, a), (other, b) in itertools.combinations(zip(devices, handles, strict=True), 2):
            level = driver.read_metric("links", "nvmlDeviceGetTopologyCommonAncestor", a, b)
            if level is None:
                driver.missing.setdefault("links", "the driver did not answer")
                return None
            # 2 is NVML_P2P_CAPS_INDEX_NVLINK.
            status = driver.read_metric("links.has_nvlink", "nvmlDeviceGetP2PStatus", a, b, 2)
            links.append(
                DeviceLink(
                    devices=(f"cuda:{one.index}", f"cuda:{other.index}"),
                    ancestor_level=level,
                    has_nvlink=None if status is None else status == 0,  # NVML_P2P_STATUS_OK
                )
            )
    except (DeviceLostError, LookupError) as error:  # perhaps of another rank: this rank's device is still read
        driver.missing["links"] = str(error)
        return None
    return tuple(links)


def text_of(value: Any) -> str:
    """Return the driver's answer as text; older bindings return bytes. Empty for None."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return "" if value is None else str(value)
