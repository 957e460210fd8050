"""Read the limits of this process: cores by affinity and quota, memory by cgroup."""

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

import psutil

UNLIMITED_BYTES = 2**60
"""cgroup v1 writes "no limit" as the largest multiple of the page size below 2**63; no machine has an exbibyte."""

_MAX_DIGITS = 7


def read_usable_cores(root: Path = Path("/")) -> float:
    """Return the number of cores that affinity and cgroup quota let this process use at once, at least 1."""
    quota_cores = read_cpu_quota_cores(root)
    return max(1.0, min(float(len(affine_cores())), math.inf if quota_cores is None else quota_cores))


def ranks_on_node(n_ranks: int = 1, n_nodes: int = 1) -> int:
    """Return the ranks on this node, as torchrun says; where it does not or cannot be right, an even part of all."""
    numbers = (os.environ.get(name, "") for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
    given, most = (int(text) if text.isdecimal() and len(text) < _MAX_DIGITS else 0 for text in numbers)
    is_possible = given >= 1 and (most == 0 or given <= max(most, n_ranks))
    return given if is_possible else max(1, n_ranks // max(1, n_nodes))


def read_cpu_quota_cores(root: Path = Path("/")) -> float | None:
    """Return the cores that the tightest cgroup around this process grants; None without a quota.

    A group further up may be tighter than the process's own, so every level up to the root counts
    (Linux kernel documentation, cgroup v2 ``cpu.max``; v1 ``cpu.cfs_quota_us``, -1 meaning none).
    """
    quotas: list[float] = []
    for folder in cgroup_folders(root, "cpu"):
        v1 = [read_text(folder / name) or "" for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
        for values in ((read_text(folder / "cpu.max") or "").split(), v1):
            if len(values) == 2 and all(value.isdecimal() and int(value) > 0 for value in values):
                quotas.append(int(values[0]) / int(values[1]))
    return min(quotas, default=None)


def read_memory_limit_bytes(root: Path = Path("/")) -> int | None:
    """Return the tightest memory limit of the cgroups around this process; None without one."""
    names = ("memory.max", "memory.limit_in_bytes")
    limits = [read_number(folder / name) for folder in cgroup_folders(root, "memory") for name in names]
    return min((each for each in limits if each is not None and each < UNLIMITED_BYTES), default=None)


def read_memory_within_limit(root: Path = Path("/")) -> tuple[int, int] | None:
    """Return bytes used and the limit of the cgroup around this process that is nearest to its limit, if any."""
    return max(_memory_within_limits(root), key=lambda pair: pair[0] / pair[1], default=None)


def free_bytes(root: Path = Path("/")) -> int:
    """Return the memory that this process may still use: by the machine, and by each cgroup around it."""
    left = [limit - used for used, limit in _memory_within_limits(root)]
    return max(0, min([int(psutil.virtual_memory().available), *left]))


def _memory_within_limits(root: Path) -> Iterator[tuple[int, int]]:
    """Yield bytes used and the limit of each cgroup around this process that has one.

    File cache that can be dropped is not counted as used (``inactive_file``), as the kernel reclaims it first.
    """
    names = (("memory.max", "memory.current", "inactive_file"),
             ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"))  # fmt: skip
    for folder in cgroup_folders(root, "memory"):
        for limit_name, used_name, cache_name in names:
            limit, used = read_number(folder / limit_name), read_number(folder / used_name)
            if limit is None or used is None or not 0 < limit < UNLIMITED_BYTES:
                continue
            statistics = dict(line.split(maxsplit=1) for line in (read_text(folder / "memory.stat") or "").splitlines())
            yield max(0, used - int(statistics.get(cache_name, 0))), limit


def cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's cgroups that may limit ``controller``, from the innermost to the mount.

    In a container the path may name folders of the host that are not mounted here; those are skipped, and the mount
    itself is then the container's own group.
    """
    mounts = root / "sys" / "fs" / "cgroup"
    for line in (read_text(root / "proc" / "self" / "cgroup") or "").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0" and not controllers:  # v2, alone or beside v1
            bases = [mounts, mounts / "unified"]
        elif controller in controllers.split(","):
            bases = [mounts / controllers, mounts / controller]
        else:
            continue
        inside = PurePosixPath(*(part for part in PurePosixPath(path).parts if part not in ("/", "..")))
        for base in bases:
            yield from (base / level for level in (inside, *inside.parents))


def affine_cores() -> list[int]:
    """Return the cores that the scheduler may put this process on; all of them where the platform has no affinity."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    with suppress(AttributeError, psutil.Error):  # macOS has no affinity
        if cores := psutil.Process().cpu_affinity():
            return sorted(cores)
    return list(range(os.cpu_count() or 1))


def read_text(path: Path) -> str | None:
    """Return a small file's text without surrounding whitespace; None if it is absent or not readable."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def read_number(path: Path) -> int | None:
    """Return the whole number in a small file; None where there is none."""
    text = read_text(path)
    return int(text) if text is not None and text.isdecimal() else None
