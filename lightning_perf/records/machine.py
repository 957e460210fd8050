"""The machine that a session was recorded on."""

import re
from collections.abc import Mapping

from .base import Record


class Device(Record, frozen=True, kw_only=True):
    """One accelerator that this process uses.

    Attributes:
        name: Name from the driver.
        kind: ``"cuda"``, ``"mps"``, ``"xpu"`` …
        capability: Compute capability such as ``"9.0"``; None outside CUDA.
        has_fast_bf16: Whether matrix multiplication runs faster in bf16 than in fp32; None if unknown.
        has_fast_fp16: The same for fp16.
    """

    index: int
    name: str
    kind: str
    memory_bytes: int | None = None
    capability: str | None = None
    has_fast_bf16: bool | None = None
    has_fast_fp16: bool | None = None


class Machine(Record, frozen=True, kw_only=True):
    """Host, devices and versions.

    Attributes:
        cpu_model: Name from the kernel; None if unknown.
        usable_cores: Cores that this process may use, by CPU affinity and cgroup quota; at least 1. Not rounded: a
            quota of 150 % is 1.5.
        cpu_quota_cores: The cgroup's quota in cores; None without one.
        memory_limit_bytes: The cgroup's limit; None without one.
        shm_bytes: Size of /dev/shm; None if there is none.
        local_world_size: Ranks on this node.
        has_fast_cpu_bf16: Only in sessions of older versions; replays now measure the speed of bf16.
        cpu_features: Features of the CPU among ``amx_bf16``, ``amx_int8``, ``avx512_bf16``, ``avx512f``, ``avx2``.
    """

    os: str
    python: str
    hostname: str = ""
    cpu_model: str | None = None
    n_logical_cores: int | None = None
    n_physical_cores: int | None = None
    usable_cores: float = 1.0
    cpu_quota_cores: float | None = None
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    shm_bytes: int | None = None
    local_world_size: int = 1
    has_fast_cpu_bf16: bool | None = None
    cpu_features: tuple[str, ...] = ()
    devices: tuple[Device, ...] = ()
    versions: dict[str, str] = {}


def async_checkpoints_are_copies(versions: Mapping[str, str], package: str | None) -> bool:
    """Return whether Lightning's ``AsyncCheckpointIO`` writes copies of tensors in its thread; True if unknown.

    Before 2.5.4 it writes them while the training changes them, so that a file mixes several steps:
    https://github.com/Lightning-AI/pytorch-lightning/pull/21079
    """
    version = versions.get("pytorch-lightning" if package == "pytorch_lightning" else "lightning", "")
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    return numbers is None or tuple(map(int, numbers.groups())) >= (2, 5, 4)
