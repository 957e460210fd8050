"""Sample the host: cores and their queues, disks, memory, quota and clocks of this process and its workers."""

import os
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import psutil
import torch

from lightning_perf import interrupts
from lightning_perf.cgroups import affine_cores, cgroup_folders, read_number, read_text
from lightning_perf.records import HostTelemetry

from .processes import KeptFile, WorkerProcesses, read_bytes
from .series import Series


class _WorkerCounters(msgspec.Struct):
    """Counters of one worker at its last reading; ``clock`` is its main thread's."""

    clock: KeptFile
    at_s: float
    cpu_s: float
    run_ns: tuple[int, int] | None
    bytes: tuple[int, int]


class HostReader:
    """Samples the host. Created in the training thread.

    ``read`` and ``add`` are separate, so that the session can be written during a slow reading. ``device_node`` is the
    NUMA node of the device; None if unknown.
    """

    def __init__(self, root: Path = Path("/"), device_node: int | None = None) -> None:
        self.missing: dict[str, str] = {}
        self.workers = WorkerProcesses(root / "proc")
        self._root = root
        self._device_node = device_node
        self._process = psutil.Process()
        self._cores = affine_cores()
        self._nodes = numa_nodes(root)
        task = root / "proc" / str(os.getpid()) / "task" / str(threading.get_native_id())
        self._task_stat = str(task / "stat")
        self._clock = KeptFile(str(task / "schedstat"))
        folders = (folder / "cpu.stat" for folder in cgroup_folders(root, "cpu"))
        self._quota_files = [str(file) for file in folders if file.exists()]
        self._clock_file = str(root / "sys" / "devices" / "system" / "cpu" / "cpu%d" / "cpufreq" / "scaling_cur_freq")
        self._shm = str(root / "dev" / "shm")
        self._worker_counters: dict[int, _WorkerCounters] = {}
        self._series: dict[str, Series] = {}
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._n_samples = self._most_workers = 0
        self._last: dict[str, float] = {}
        self._disks_s: dict[str, float] = {}
        self._facts = self._read_facts()
        self.read(time.monotonic())

    def close(self) -> None:
        self._clock.close()
        for now in self._worker_counters.values():
            now.clock.close()
        self._worker_counters.clear()

    def read(self, at_s: float) -> dict[str, float]:
        """Return the activity since the last reading, by metric; empty the first time.

        ``at_s`` is the time of any monotonic clock.
        """
        now = {"at_s": at_s, **self._counters()}
        last, self._last = self._last, now
        disks_before_s, self._disks_s = self._disks_s, _disks_busy_s()
        workers = self._read_workers(at_s)
        passed_s = at_s - last.get("at_s", at_s)
        if passed_s <= 0:
            return {}
        sample = {name: max(0.0, now[name] - last[name]) for name in now if name in last and name != "at_s"}
        for name, rate in _RATES.items():
            of_workers = workers.pop(name, 0.0)
            if name in sample:  # without this process's bytes, those of workers alone would mislead
                sample[rate] = (sample.pop(name) + of_workers) / passed_s
        self._add_core_fractions(sample)
        busy_s = [at_end_s - disks_before_s[name] for name, at_end_s in self._disks_s.items() if name in disks_before_s]
        if busy_s:
            sample["disk_busy_fraction"] = max(0.0, *busy_s) / passed_s
        return {"passed_s": passed_s, **sample, **self._gauges(workers.pop("rss_bytes", 0.0)), **workers}

    def add(self, sample: Mapping[str, float], weight_s: float) -> None:
        """Add a sample that covers ``weight_s`` seconds."""
        if not sample:
            return
        self._n_samples += 1
        self._most_workers = max(self._most_workers, int(sample.get("n_workers", 0)))
        for name, value in sample.items():
            if name in _SUMMED:
                self._sums[name] += value
            elif name != "n_workers":
                self._series.setdefault(name, Series()).add(value, weight_s)

    def record(self, extra: Mapping[str, Any]) -> HostTelemetry:
        """Return the record of all samples, with fields from elsewhere in ``extra``."""
        sums = self._sums
        worker_s, passed_s = sums["worker_s"], sums["passed_s"]
        spreads: dict[str, Any] = {name: series.spread() for name, series in self._series.items()}
        fields: dict[str, Any] = {**self._facts, **spreads, **extra}
        if worker_s > 0:
            fields["workers_queueing_fraction"] = queueing = min(1.0, sums["worker_queued_s"] / worker_s)
            fields["workers_blocked_fraction"] = max(0.0, 1.0 - sums["worker_ran_s"] / worker_s - queueing)
        if "queued_s" in sums and passed_s > 0:
            fields["process_queueing_fraction"] = min(1.0, sums["queued_s"] / passed_s)
        if "throttle_periods" in sums:
            fields |= {name: int(sums[name]) for name in ("throttle_periods", "throttled_periods")}
            fields["throttled_s"] = sums["throttled_s"]
        if sums["node_known"] > 0:
            fields["off_device_node_fraction"] = sums["off_node"] / sums["node_known"]
        return HostTelemetry(n_samples=self._n_samples, n_workers=self._most_workers, **fields)

    def _counters(self) -> dict[str, float]:
        """Return counters that only grow."""
        counters: dict[str, float] = {"process_cpu_s": time.process_time()}
        run_ns = self._clock.numbers()
        if run_ns is not None:
            counters["queued_s"] = run_ns[1] / 1e9
        try:
            import resource

            usage = resource.getrusage(resource.RUSAGE_SELF)
            counters |= {"involuntary": usage.ru_nivcsw, "voluntary": usage.ru_nvcsw}
        except ImportError:  # Windows
            pass
        read_write = _storage_bytes(self._process)
        if read_write is not None:
            counters |= {"read_bytes": read_write[0], "write_bytes": read_write[1]}
        elif "read_bytes_per_s" not in self.missing:
            self.missing["read_bytes_per_s"] = "the kernel does not report what this process reads"
        counters |= _core_times(self._cores)
        return counters | throttling(self._quota_files)

    def _read_workers(self, at_s: float) -> dict[str, float]:
        """Return the resources that the workers used since their last readings."""
        used: defaultdict[str, float] = defaultdict(float)
        counters: dict[int, _WorkerCounters] = {}
        for process in self.workers.processes():
            before = self._worker_counters.pop(process.pid, None)
            file = self._root / "proc" / str(process.pid) / "schedstat"
            clock = before.clock if before is not None else KeptFile(str(file))
            try:
                times = process.cpu_times()
                used["rss_bytes"] += process.memory_info().rss
            except psutil.Error:  # ended meanwhile
                clock.close()
                continue
            read_write = _storage_bytes(process) or (0, 0)
            now = _WorkerCounters(clock, at_s, times.user + times.system, clock.numbers(), read_write)
            counters[process.pid] = now
            if before is not None:
                for name, amount in _used_between(before, now).items():
                    used[name] += amount
        for gone in self._worker_counters.values():
            gone.clock.close()
        self._worker_counters = counters
        if counters:
            used["n_workers"] = len(counters)
        return dict(used)

    def _add_core_fractions(self, sample: dict[str, float]) -> None:
        """Replace the seconds of cores in a sample by their fractions of all core time."""
        total_s = sample.pop("cores_s", 0.0)
        idle_s, iowait_s = sample.pop("cores_idle_s", 0.0), sample.pop("cores_iowait_s", None)
        steal_s = sample.pop("cores_steal_s", None)
        if total_s <= 0:
            return
        sample["cpu_busy_fraction"] = min(1.0, max(0.0, 1.0 - (idle_s + (iowait_s or 0.0)) / total_s))
        for name, seconds in (("iowait_fraction", iowait_s), ("steal_fraction", steal_s)):
            if seconds is not None:
                sample[name] = min(1.0, seconds / total_s)

    def _gauges(self, workers_rss_bytes: float) -> dict[str, float]:
        gauges: dict[str, float] = {"rss_bytes": self._process.memory_info().rss + workers_rss_bytes}
        gauges["available_bytes"] = psutil.virtual_memory().available
        if hasattr(os, "getloadavg"):
            gauges["load_1min"] = os.getloadavg()[0]
        with interrupts.suppress(OSError):  # neither Windows nor macOS has it
            gauges["shm_used_bytes"] = shutil.disk_usage(self._shm).used
        fields = read_bytes(self._task_stat).rpartition(b")")[2].split()
        if len(fields) > 36:
            core = int(fields[36])  # on which the training thread ran last
            khz = read_bytes(self._clock_file % core).strip()
            if khz.isdigit():
                gauges["cpu_mhz"] = int(khz) / 1e3
            if self._device_node is not None and len(self._nodes) > 1:
                gauges["node_known"] = 1.0
                gauges["off_node"] = float(core not in self._nodes.get(self._device_node, ()))
        return gauges

    def _read_facts(self) -> dict[str, Any]:
        frequency = self._root / "sys" / "devices" / "system" / "cpu" / "cpu0" / "cpufreq"
        khz = (read_number(frequency / name) for name in ("base_frequency", "cpuinfo_max_freq"))
        base_mhz, max_mhz = (None if each is None else each / 1e3 for each in khz)
        if max_mhz is None:
            self.missing["cpu_mhz"] = "the kernel does not report clocks (no cpufreq)"
        return {
            "n_torch_threads": torch.get_num_threads(),
            "n_openmp_threads": _threads_by("OMP_NUM_THREADS"),
            "n_mkl_threads": _threads_by("MKL_NUM_THREADS"),
            "process_numa_nodes": tuple(sorted(n for n, cores in self._nodes.items() if cores & set(self._cores))),
            "base_cpu_mhz": base_mhz,
            "max_cpu_mhz": max_mhz,
            "cpu_governor": read_text(frequency / "scaling_governor"),
        }


_RATES = {
    "process_cpu_s": "process_cpu_cores",
    "involuntary": "involuntary_switches_per_s",
    "voluntary": "voluntary_switches_per_s",
    "read_bytes": "read_bytes_per_s",
    "write_bytes": "write_bytes_per_s",
}
_SUMMED = {
    "passed_s", "queued_s", "worker_s", "worker_ran_s", "worker_queued_s", "throttle_periods", "throttled_periods",
    "throttled_s", "node_known", "off_node",
}  # fmt: skip


def throttling(files: list[str]) -> dict[str, float]:
    """Return periods, throttled periods and seconds of the most throttled cgroup; empty without a quota.

    ``files`` are the ``cpu.stat`` of the cgroups around this process (Linux kernel documentation, cgroup v1 and v2: v2
    counts microseconds, v1 nanoseconds).
    """
    worst: dict[str, float] = {}
    for file in files:
        lines = (line.split() for line in read_bytes(file).decode().splitlines())
        counts = {line[0]: float(line[1]) for line in lines if len(line) == 2 and line[1].isdecimal()}
        if not counts.get("nr_periods"):  # a group without a quota has no periods
            continue
        throttled_s = counts.get("throttled_usec", 0.0) / 1e6 + counts.get("throttled_time", 0.0) / 1e9
        if not worst or counts.get("nr_throttled", 0.0) > worst["throttled_periods"]:
            worst = {
                "throttle_periods": counts["nr_periods"],
                "throttled_periods": counts.get("nr_throttled", 0.0),
                "throttled_s": throttled_s,
            }
    return worst


def numa_nodes(root: Path = Path("/")) -> dict[int, set[int]]:
    """Return cores by NUMA node; empty if unknown."""
    nodes = {}
    for folder in (root / "sys" / "devices" / "system" / "node").glob("node[0-9]*"):
        cores: set[int] = set()
        for part in filter(None, (read_text(folder / "cpulist") or "").split(",")):
            first, _, last = part.partition("-")
            cores |= set(range(int(first), int(last or first) + 1))
        nodes[int(folder.name[4:])] = cores
    return nodes


def _used_between(before: _WorkerCounters, now: _WorkerCounters) -> dict[str, float]:
    passed_s = now.at_s - before.at_s
    read, written = (float(after - earlier) for after, earlier in zip(now.bytes, before.bytes, strict=True))
    used = {"read_bytes": read, "write_bytes": written}
    if passed_s > 0:
        used["workers_cpu_cores"] = (now.cpu_s - before.cpu_s) / passed_s
        if before.run_ns is not None and now.run_ns is not None:
            used["worker_s"] = passed_s
            used["worker_ran_s"] = (now.run_ns[0] - before.run_ns[0]) / 1e9
            used["worker_queued_s"] = (now.run_ns[1] - before.run_ns[1]) / 1e9
    return used


def _core_times(cores: list[int]) -> dict[str, float]:
    """Return seconds of these cores together: in total, idle, waiting for disks, and stolen by the hypervisor."""
    each = psutil.cpu_times(percpu=True) if len(cores) < (os.cpu_count() or 1) else [psutil.cpu_times()]
    mine = [each[core] for core in cores if core < len(each)] if len(each) > 1 else each
    counted: defaultdict[str, float] = defaultdict(float)
    for times in mine:
        # Guest time is already included in user time.
        counted["cores_s"] += sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        counted["cores_idle_s"] += times.idle
        for field in ("iowait", "steal"):
            if hasattr(times, field):
                counted[f"cores_{field}_s"] += getattr(times, field)
    return dict(counted)


def _disks_busy_s() -> dict[str, float]:
    """Return seconds since boot in which each disk was busy; empty if unknown.

    Handling of wrapped counters in psutil takes a lock, which a forked worker could inherit locked.
    """
    disks: dict[str, Any] = {}
    with interrupts.suppress(OSError, RuntimeError, psutil.Error):
        disks = psutil.disk_io_counters(perdisk=True, nowrap=False) or {}
    busy_ms = {name: getattr(disk, "busy_time", None) for name, disk in disks.items()}
    return {name: ms / 1e3 for name, ms in busy_ms.items() if ms is not None and not name.startswith(("loop", "ram"))}


def _storage_bytes(process: psutil.Process) -> tuple[int, int] | None:
    try:
        counters = process.io_counters()
    except (AttributeError, OSError, psutil.Error):  # macOS reports nothing; a sandbox may forbid it
        return None
    return counters.read_bytes, counters.write_bytes


def _threads_by(variable: str) -> int | None:
    first = os.environ.get(variable, "").split(",")[0].strip()
    return int(first) if first.isdecimal() else None
