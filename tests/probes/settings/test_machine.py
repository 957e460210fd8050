"""The machine, read from synthetic trees of proc and sys."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from lightning_perf import cgroups
from lightning_perf.cgroups import read_cpu_quota_cores, read_memory_limit_bytes
from lightning_perf.probes.settings import machine
from lightning_perf.probes.settings.machine import read_cpu_features, read_machine
from lightning_perf.treatments.treatment import whole_cores_per_rank

GIB = 2**30


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def test_cpu_quota_is_the_tightest_when_several_levels_of_v2_have_one(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/slurm/job/step",
            "sys/fs/cgroup/slurm/job/step/cpu.max": "400000 100000",
            "sys/fs/cgroup/slurm/job/cpu.max": "150000 100000",
            "sys/fs/cgroup/slurm/cpu.max": "max 100000",
            "sys/fs/cgroup/other/cpu.max": "1000 100000",
        },
    )
    assert read_cpu_quota_cores(root) == 1.5


def test_cores_of_a_rank_are_those_of_the_quota_when_there_is_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "affine_cores", lambda: list(range(64)))
    monkeypatch.setattr(cgroups, "read_cpu_quota_cores", lambda root: 6.5)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert whole_cores_per_rank(None) == 2
    monkeypatch.setattr(cgroups, "read_cpu_quota_cores", lambda root: None)
    assert whole_cores_per_rank(None) == 21


@pytest.mark.parametrize(
    ("local", "world", "expected"),
    [("2", "8", 2), ("abc", "8", 4), ("0", "8", 4), ("-1", "8", 4), ("", "", 4), ("16", "8", 4), ("2", "", 2)],
)
def test_ranks_on_a_node_are_an_even_part_when_the_environment_cannot_be_right(
    monkeypatch: pytest.MonkeyPatch, local: str, world: str, expected: int
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
    monkeypatch.setenv("WORLD_SIZE", world)
    assert cgroups.ranks_on_node(8, n_nodes=2) == expected


def test_cpu_quota_is_read_from_v1_when_controllers_share_a_mount(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/docker/ab\n4:cpu,cpuacct:/docker/ab\n1:name=systemd:/docker/ab",
            "sys/fs/cgroup/cpu,cpuacct/docker/ab/cpu.cfs_quota_us": "250000",
            "sys/fs/cgroup/cpu,cpuacct/docker/ab/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/docker/ab/memory.limit_in_bytes": str(2 * GIB),
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        },
    )
    assert read_cpu_quota_cores(root) == 2.5
    assert read_memory_limit_bytes(root) == 2 * GIB


def test_cpu_quota_is_found_at_the_mount_when_the_path_is_the_hosts(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/../../kubepods/pod1/c1",
            "sys/fs/cgroup/cpu.max": "300000 100000",
            "sys/fs/cgroup/memory.max": str(GIB),
        },
    )
    assert read_cpu_quota_cores(root) == 3.0
    assert read_memory_limit_bytes(root) == GIB


def test_cpu_quota_is_found_when_v1_and_v2_are_mounted(tmp_path: Path) -> None:
    root = tree(tmp_path, {"proc/self/cgroup": "2:cpu:/\n0::/a", "sys/fs/cgroup/unified/a/cpu.max": "50000 100000"})
    assert read_cpu_quota_cores(root) == 0.5


@pytest.mark.parametrize("text", ["max 100000", "", "100000 0", "nonsense"])
def test_cpu_quota_is_none_when_there_is_none_or_it_is_garbled(tmp_path: Path, text: str) -> None:
    root = tree(tmp_path, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": text, "sys/fs/cgroup/memory.max": text})
    assert read_cpu_quota_cores(root) is None
    assert read_memory_limit_bytes(root) is None


def test_usable_cores_are_affinity_and_quota_together_when_both_limit(tmp_path: Path, monkeypatch) -> None:
    root = tree(tmp_path, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "250000 100000"})
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert read_machine(root=root).usable_cores == 2.5
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3}, raising=False)
    assert read_machine(root=root).usable_cores == 2.0


def test_usable_cores_are_at_least_one_when_the_quota_is_less(tmp_path: Path) -> None:
    found = read_machine(root=tree(tmp_path, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "20000 100000"}))
    assert (found.usable_cores, found.cpu_quota_cores) == (1.0, 0.2)


def test_usable_cores_are_all_cores_when_the_platform_has_no_affinity(tmp_path: Path, monkeypatch) -> None:
    class NoAffinity:
        pass

    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(machine.psutil, "Process", NoAffinity)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert read_machine(root=tmp_path).usable_cores == 6.0


@pytest.mark.parametrize(
    ("flags", "features"),
    [
        ("fpu avx2 avx512f amx_bf16 amx_tile amx_int8", ("amx_bf16", "amx_int8", "avx512f", "avx2")),
        ("fpu avx2 avx512_bf16", ("avx512_bf16", "avx2")),
        ("fpu avx2 avx512f avx512_vnni", ("avx512f", "avx2")),
    ],
)
def test_cpu_features_are_read_when_flags_are_listed(tmp_path: Path, flags: str, features: tuple[str, ...]) -> None:
    root = tree(tmp_path, {"proc/cpuinfo": f"processor\t: 0\nmodel name\t: Some Chip @ 2.5GHz\nflags\t\t: {flags}"})
    found = read_machine(root=root)
    assert found.cpu_features == features
    assert found.cpu_model == "Some Chip @ 2.5GHz"


def test_machine_degrades_to_none_when_there_is_neither_proc_nor_sys(tmp_path: Path) -> None:
    found = read_machine(local_world_size=4, root=tmp_path)
    assert read_cpu_features(tmp_path) == ()
    assert (found.cpu_quota_cores, found.memory_limit_bytes, found.shm_bytes) == (None, None, None)
    assert found.local_world_size == 4
    assert found.usable_cores >= 1


def test_machine_of_this_process_is_described_when_read_directly() -> None:
    found = read_machine()
    assert found.devices == ()
    assert found.memory_bytes
    assert {"torch", "lightning", "numpy", "python", "lightning-perf"} <= set(found.versions)
    assert found.versions["torch"] == torch.__version__


def test_machine_touches_no_accelerator_when_training_is_on_the_cpu(monkeypatch) -> None:
    def touched(*_: object) -> None:
        raise AssertionError("initializes CUDA")

    for name in ("get_device_properties", "current_device", "is_available", "device_count", "init"):
        monkeypatch.setattr(torch.cuda, name, touched)
    assert read_machine(device=torch.device("cpu")).devices == ()


class Properties:
    name = "Some GPU"
    total_memory = 16 * GIB

    def __init__(self, major: int, minor: int, architecture: str = "") -> None:
        self.major, self.minor, self.gcnArchName = major, minor, architecture


@pytest.mark.parametrize(
    ("capability", "fp16", "bf16"),
    [((6, 1), False, False), ((7, 5), True, False), ((8, 0), True, True), ((12, 0), True, True)],
)
def test_device_has_its_fast_dtypes_when_it_is_cuda(
    monkeypatch, capability: tuple[int, int], fp16: bool, bf16: bool
) -> None:
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Properties(*capability))
    (device,) = read_machine(device=torch.device("cuda", 1)).devices
    assert (device.has_fast_fp16, device.has_fast_bf16) == (fp16, bf16)
    assert (device.index, device.kind, device.memory_bytes) == (1, "cuda", 16 * GIB)
    assert device.capability == f"{capability[0]}.{capability[1]}"


@pytest.mark.parametrize(
    ("architecture", "fp16", "bf16"),
    [("gfx90a:sramecc+:xnack-", True, True), ("gfx942", True, True), ("gfx908", True, None), ("gfx1030", None, None)],
)
def test_device_has_its_fast_dtypes_when_it_is_rocm(
    monkeypatch, architecture: str, fp16: bool | None, bf16: bool | None
) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.2")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Properties(9, 4, architecture))
    (device,) = read_machine(device=torch.device("cuda")).devices
    assert (device.has_fast_fp16, device.has_fast_bf16) == (fp16, bf16)
    assert device.capability is None
