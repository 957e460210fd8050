"""Read the machine: cores and memory this process may use, CPU features, its accelerator, versions."""

import functools
import importlib.metadata
import os
import platform
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

import psutil
import torch

from lightning_perf.cgroups import (
    ranks_on_node,
    read_cpu_quota_cores,
    read_memory_limit_bytes,
    read_text,
    read_usable_cores,
)
from lightning_perf.records import Device, Machine

CPU_FEATURES = ("amx_bf16", "amx_int8", "avx512_bf16", "avx512f", "avx2")
PACKAGES = ("torch", "lightning", "pytorch-lightning", "torchmetrics", "numpy", "lightning-perf")

FAST_BF16_CAPABILITY = (8, 0)
"""Tensor Cores take bf16 from compute capability 8.0 on (CUDA C++ programming guide, arithmetic by capability)."""
FAST_FP16_CAPABILITY = (7, 0)
"""Tensor Cores take fp16 from compute capability 7.0 on (the same table)."""
FAST_BF16_GCN = ("gfx90a", "gfx94", "gfx95")
"""MI200, MI300, MI350: matrix cores whose bf16 runs at the rate of fp16 (AMD CDNA2 white paper, peak rates)."""
FAST_FP16_GCN = ("gfx908", *FAST_BF16_GCN)
"""MI100 runs fp16 at its full matrix rate, bf16 at half of that (AMD CDNA white paper)."""


def read_machine(local_world_size: int = 1, root: Path = Path("/"), device: torch.device | None = None) -> Machine:
    """Describe the machine of this process; fields that the platform does not report are None.

    ``local_world_size`` is the number of ranks on this node. With ``device`` None or a CPU, no accelerator is
    initialized.
    """
    return Machine(
        os=_read_os(),
        python=platform.python_version(),
        hostname=socket.gethostname(),
        cpu_model=_read_cpuinfo(root, "model name")
        or _read_cpuinfo(root, "Hardware")
        or (None if sys.platform == "linux" else platform.processor() or None),  # on Linux, this runs `uname -p` too
        n_logical_cores=psutil.cpu_count(logical=True),
        n_physical_cores=psutil.cpu_count(logical=False),
        usable_cores=read_usable_cores(root),
        cpu_quota_cores=read_cpu_quota_cores(root),
        memory_bytes=_read_memory_bytes(),
        memory_limit_bytes=read_memory_limit_bytes(root),
        shm_bytes=_read_shm_bytes(root),
        local_world_size=local_world_size,
        cpu_features=read_cpu_features(root),
        devices=() if device is None or device.type == "cpu" else (read_device(device),),
        versions={**read_versions()},
    )


def _read_os() -> str:
    """Return what ``platform.platform()`` returns, on Linux without its child process, ``uname -p``.

    To search PATH for a child's program, ``os.get_exec_path`` changes the warning filters. Python then repeats warnings
    of the user's code that it would show only once.
    """
    if sys.platform != "linux":
        return platform.platform()
    name = os.uname()
    return f"{name.sysname}-{name.release}-{name.machine}-with-{''.join(platform.libc_ver())}"


def read_cpu_features(root: Path = Path("/")) -> tuple[str, ...]:
    """Return those of ``CPU_FEATURES`` that the kernel reports, which reports x86 flags only."""
    present = (_read_cpuinfo(root, "flags") or "").split()
    return tuple(feature for feature in CPU_FEATURES if feature in present)


@functools.cache  # reading them takes some 10 ms
def read_versions() -> dict[str, str]:
    """Return versions by distribution name, with ``python`` and torch's toolkit (``cuda`` or ``hip``)."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    # A torch built from source may lack metadata under its usual name.
    versions.setdefault("torch", str(torch.__version__))
    for toolkit in ("cuda", "hip"):
        if version := getattr(torch.version, toolkit, None):
            versions[toolkit] = str(version)
    return versions


def read_device(device: torch.device) -> Device:
    """Describe the accelerator trained on; None for what its backend does not report. Initializes the backend."""
    if device.type == "cuda":
        return _read_cuda_device(device)
    backend = getattr(torch, device.type, None)
    index, name, memory_bytes = device.index or 0, device.type, None
    if device.type == "mps":
        recommended_bytes = getattr(backend, "recommended_max_memory", None)
        name, memory_bytes = "Apple GPU", recommended_bytes() if recommended_bytes else None
    elif get_properties := getattr(backend, "get_device_properties", None):
        properties = get_properties(index)
        name, memory_bytes = str(getattr(properties, "name", name)), getattr(properties, "total_memory", None)
    return Device(index=index, name=name, kind=device.type, memory_bytes=memory_bytes)


def _read_cuda_device(device: torch.device) -> Device:
    index = torch.cuda.current_device() if device.index is None else device.index
    properties = torch.cuda.get_device_properties(index)
    capability = (int(properties.major), int(properties.minor))
    is_rocm = getattr(torch.version, "hip", None) is not None
    architecture = str(getattr(properties, "gcnArchName", ""))
    has_fast_bf16: bool | None = capability >= FAST_BF16_CAPABILITY
    has_fast_fp16: bool | None = capability >= FAST_FP16_CAPABILITY
    if is_rocm:
        # None rather than False for other chips: consumer chips differ too much.
        has_fast_bf16 = architecture.startswith(FAST_BF16_GCN) or None
        has_fast_fp16 = architecture.startswith(FAST_FP16_GCN) or None
    return Device(
        index=index,
        name=str(properties.name),
        kind="cuda",
        memory_bytes=int(properties.total_memory),
        capability=None if is_rocm else f"{capability[0]}.{capability[1]}",
        has_fast_bf16=has_fast_bf16,
        has_fast_fp16=has_fast_fp16,
    )


def _read_cpuinfo(root: Path, key: str) -> str | None:
    for line in (read_text(root / "proc" / "cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return None


def _read_memory_bytes() -> int | None:
    try:
        return int(psutil.virtual_memory().total)
    except (OSError, psutil.Error):
        return None


def _read_shm_bytes(root: Path) -> int | None:
    try:
        return shutil.disk_usage(root / "dev" / "shm").total
    except OSError:  # neither Windows nor macOS has it
        return None


def device_name(device: torch.device) -> str:
    """Return ``"cpu"`` or, with its number, e.g. ``"cuda:1"``."""
    return device.type if device.type == "cpu" else f"{device.type}:{device.index or 0}"


def local_world_size(trainer: Any) -> int:
    """Return the number of ranks on this node."""
    return ranks_on_node(int(trainer.world_size), int(trainer.num_nodes))
