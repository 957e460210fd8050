"""Sample device and host in a background thread.

The thread only samples and waits. A forked worker does not inherit it, and nothing that a worker runs takes one of its
locks.
"""

import contextlib
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

import msgspec
import torch

from lightning_perf.cgroups import read_text
from lightning_perf.interrupts import error_text, raise_if_from_signal
from lightning_perf.probes import plain
from lightning_perf.probes.background import BackgroundThread
from lightning_perf.probes.base import Probe, RunContext
from lightning_perf.probes.memory.storages import n_bytes
from lightning_perf.probes.timeline.loop import LoopTimer
from lightning_perf.records import DatasetDisk, Session, Telemetry
from lightning_perf.records.files import NETWORK_FILE_SYSTEMS, mount_of
from lightning_perf.seams import is_overridden

from .energy import EnergyLedger, PackageEnergy, Rates, cost_of
from .gpu import GpuReader, open_gpu
from .host import HostReader
from .processes import FetchWatch
from .series import MetricTimeline

DEFAULT_HZ = 1.0

MAX_CORE_FRACTION = 0.005
"""Share of one core that sampling may use: slower samples are taken less often."""
FIRST_HZ = 10.0
FIRST_S = 3.0
FIRST_CORE_FRACTION = 0.01
"""The first seconds are sampled more often, to cover runs of a few seconds."""

_JOIN_S = 5.0
_SEARCH = "transfer_batch_to_device"
_TIMELINE_METRICS = {
    "process_cpu_cores", "workers_cpu_cores", "cpu_busy_fraction", "iowait_fraction", "disk_busy_fraction",
    "read_bytes_per_s", "rss_bytes", "available_bytes", "cpu_mhz",
    "utilisation_fraction", "power_w", "temperature_c", "sm_clock_mhz", "memory_used_bytes",
}  # fmt: skip

_log = logging.getLogger("lightning_perf")

_MAX_ENTRIES = 20  # of a batch whose objects are counted by entry


class TelemetryProbe(Probe):
    """One run's telemetry. Created and started in the training thread.

    ``host`` or ``gpu`` is None if it cannot be read. ``step`` returns the number of finished steps; samples count from
    the first on.
    """

    name = field = "telemetry"
    after = ("steps",)

    def __init__(
        self,
        host: HostReader | None,
        gpu: GpuReader | None,
        packages: PackageEnergy,
        *,
        now_ns: Callable[[], int],
        start_ns: int,
        step: Callable[[], int],
    ) -> None:
        self.fetch_watch = FetchWatch(now_ns)
        self._host, self._gpu, self._packages = host, gpu, packages
        self._now_ns, self._start_ns, self._step = now_ns, start_ns, step
        self._last_s = 0.0
        self._timeline = MetricTimeline()
        self._ledger = EnergyLedger(self._elapsed_s())
        self._batch_bytes: int | None = None
        self._batch_objects: int | None = None
        self._batch_entry = ""
        self._is_searched = True
        self._disk_of: Any = None
        self._lock = threading.Lock()
        self._background = BackgroundThread("lightning-perf telemetry", self._sample_and_rest, _JOIN_S)
        self._started_s = self._cpu_s = self._mean_cost_s = self._ran_s = 0.0
        self._is_closed = False
        self._is_left_out = self._was_left_out = False
        self._loop: LoopTimer | None = None  # samples its fetches with ``fetch_watch``

    @classmethod
    def open(cls, run: RunContext) -> "TelemetryProbe | None":
        if not run.options.device_stats:
            run.missing["telemetry"] = "device_stats=False"
            return None
        loop, strategy, missing = run.loop, run.trainer.strategy, dict[str, str]()
        device, ranks_devices = strategy.root_device, getattr(strategy, "parallel_devices", None) or ()
        host: HostReader | None = None
        gpu, reason = open_gpu(
            device, lambda: host.workers.pids() if host is not None else set(), torch, node_devices=ranks_devices
        )
        if gpu is None and device.type != "cpu":
            missing["telemetry.devices"] = reason
        try:
            host = HostReader(device_node=None if gpu is None else gpu.record().numa_node)
        except Exception as error:  # noqa: BLE001 - recorded in missing; the device can be sampled without it
            missing["telemetry.host"] = error_text(error)
            _log.debug("the host could not be read", exc_info=True)
        start_ns = loop.timeline.start_ns
        probe = cls(host, gpu, PackageEnergy(), now_ns=run.now_ns, start_ns=start_ns, step=lambda: loop.main.n_steps)
        probe.missing.update(missing)
        probe._loop, loop.fetch_watch = loop, probe.fetch_watch
        return probe

    def start(self) -> None:
        self.sample()
        self._started_s = time.monotonic()
        self._background.start(pause_s(0.0, 0.0))

    def close(self) -> None:
        """Take a last sample and stop. Can be called twice."""
        if self._loop is not None:
            self._loop.fetch_watch = None
        is_sampling = self._background.thread is not None
        if not self._background.close():
            # The thread ends when the driver call returns, or with the process.
            self.missing["telemetry"] = f"the driver did not answer for {_JOIN_S:g} s; sampling was abandoned"
            return
        if is_sampling and self.error is None:
            self._ran_s = time.monotonic() - self._started_s
            try:
                self.sample()
            except Exception as error:  # noqa: BLE001 - kept for `ProbeSet`, which reports it
                raise_if_from_signal(error)
                self.error = error
        if not self._is_closed:
            self._is_closed = True
            self.fetch_watch.close()
            for reader in (self._host, self._gpu):
                if reader is not None:
                    reader.close()

    def first_batch(self, batch: Any) -> None:
        left = plain.search_limit()
        tensors = plain.tensors_in(batch, 4, in_objects=False, left=left)
        self._batch_bytes = sum(map(n_bytes, tensors)) or None
        if self._is_searched:
            self._batch_objects = plain.MAX_VISITED - len(list(left))
            self._batch_entry = _largest_entry(batch)

    def loops_ready(self, run: RunContext) -> None:
        """Find the disk of the training dataset, and whether Lightning itself searches batches for tensors."""
        owners = (run.pl_module, getattr(run.trainer, "datamodule", None))
        self._is_searched = not any(is_overridden(one, _SEARCH) for one in owners if one is not None)
        dataset = plain.stored(run.trainer.train_dataloader, "dataset") if run.stage == "fit" else None
        if dataset is None:
            return
        self._disk_of = dataset_disk(dataset)
        if self._disk_of is None:
            self.missing["telemetry.host.dataset_disk"] = "the dataset has no attribute with an existing path"

    def leave_out(self, is_on: bool) -> None:
        """Exclude samples while PerfDoctor itself uses cores, or include them again; energy is always counted.

        The first sample after the exclusion ends is excluded too: it covers a part of it.
        """
        self._is_left_out = is_on
        self._was_left_out = True

    def epoch_ends(self) -> None:
        if self._gpu is None and not self._packages.is_metered:
            return  # no energy; epochs may take less than a millisecond
        samples = self._loop.main.epoch_samples() if self._loop is not None else None
        with self._lock:
            self._ledger.epoch_ended(samples)

    def sample(self) -> None:
        """Take one sample."""
        at_s = self._elapsed_s()
        passed_s = at_s - self._last_s
        step = self._step()
        gpu = self._gpu.read() if self._gpu is not None else {}
        host = self._host.read(at_s) if self._host is not None else {}
        cpu_j = self._packages.read()
        is_left_out, self._was_left_out = self._is_left_out or self._was_left_out, self._is_left_out
        # No lock is held during readings: a driver may be slow.
        with self._lock:
            weight_s = passed_s if step > 0 and not is_left_out else 0.0
            if weight_s > 0:
                if self._gpu is not None:
                    self._gpu.add(gpu, weight_s)
                if self._host is not None:
                    self._host.add(host, weight_s)
            power_w = gpu.get("power_w") if self._gpu is not None and self._gpu.has_own_power else None
            self._ledger.add(at_s, gpu.get("energy_j"), power_w, cpu_j)
            values = {name: value for name, value in host.items() if name in _TIMELINE_METRICS}
            if self._gpu is not None:
                device = self._gpu.device
                values.update({f"{device} {name}": value for name, value in gpu.items() if name in _TIMELINE_METRICS})
            if values:
                self._timeline.add(self._last_s, step, values)
            self._last_s = at_s

    def _sample_and_rest(self) -> float:
        """Take a sample, as the thread; return the seconds to wait before the next one."""
        before_s = time.thread_time()
        self.sample()
        cost_s = time.thread_time() - before_s
        self._mean_cost_s = cost_s if self._mean_cost_s == 0 else 0.8 * self._mean_cost_s + 0.2 * cost_s
        self._cpu_s = time.thread_time()  # all of this thread's
        self._ran_s = time.monotonic() - self._started_s
        return pause_s(self._ran_s, self._mean_cost_s)

    def _elapsed_s(self) -> float:
        return (self._now_ns() - self._start_ns) / 1e9

    def record(self) -> Telemetry:
        with self._lock:
            blocked, queueing = self.fetch_watch.fractions()
            extra = {
                "fetch_blocked_fraction": blocked,
                "fetch_queueing_fraction": queueing,
                "batch_bytes": self._batch_bytes,
                "batch_objects": self._batch_objects,
                "batch_entry": self._batch_entry,
                "dataset_disk": self._disk_of,
            }
            energy = self._ledger.record()
            return Telemetry(
                hz=DEFAULT_HZ,
                sampler_core_fraction=self._cpu_s / self._ran_s if self._ran_s >= 1 else None,
                devices=() if self._gpu is None else (self._gpu.record(),),
                host=None if self._host is None else self._host.record(extra),
                energy=None if energy.metered_j is None else energy,
                timeline=self._timeline.records(),
            )

    def reasons(self) -> dict[str, str]:
        missing = dict(self.missing)
        if self._gpu is not None:
            root = f"telemetry.devices.{self._gpu.device}"
            missing.update({f"{root}.{name}": why for name, why in self._gpu.missing.items()})
            if self._gpu.lost_reason:
                missing[root] = self._gpu.lost_reason
        if self._host is not None:
            missing.update({f"telemetry.host.{name}": why for name, why in self._host.missing.items()})
        if self._packages.missing_reason:
            missing["telemetry.energy.cpu_j"] = self._packages.missing_reason
        return missing


def pause_s(ran_s: float, cost_s: float) -> float:
    """Return seconds until the next sample after ``ran_s`` seconds, so that samples of ``cost_s`` take little CPU."""
    hz, core_fraction = (FIRST_HZ, FIRST_CORE_FRACTION) if ran_s < FIRST_S else (DEFAULT_HZ, MAX_CORE_FRACTION)
    return max(1.0 / hz, cost_s / core_fraction)


def with_cost(session: Session, rates: Rates, wall_s: float) -> Telemetry | None:
    """Return a session's telemetry with the run's cost by the user's rates; unchanged without rates."""
    telemetry, epochs = session.telemetry, session.epochs
    epoch_s = sum(epoch.wall_s for epoch in epochs) / len(epochs) if epochs else None
    cost = cost_of(telemetry.energy if telemetry is not None else None, rates, wall_s, epoch_s)
    return telemetry if cost is None else msgspec.structs.replace(telemetry or Telemetry(hz=0.0), cost=cost)


# Names under which datasets usually keep their folder or their files.
_PATH_FIELDS = (
    "root", "path", "data_dir", "directory", "folder", "file", "filename", "img_dir", "image_dir",
    "paths", "files", "filenames", "samples", "imgs", "images",
)  # fmt: skip


def dataset_path(dataset: Any, depth: int = 4) -> Path | None:
    """Return the first existing path in the fields of a dataset, or of the datasets it wraps; None without one.

    Reads instance attributes only: no user code runs.
    """
    fields = plain.attributes(dataset)
    for name in _PATH_FIELDS:
        value = fields.get(name)
        while type(value) in (list, tuple) and value:
            value = value[0]
        is_path = type(value) is str or (plain.is_a(value, PurePath) and plain.is_library(type(value)))
        if is_path and value:  # only then: the truth value of an array or tensor raises
            path = Path(value)
            with contextlib.suppress(OSError, ValueError):  # a text that is too long for a path, or contains a null
                if path.exists():
                    return path
    inner = fields.get("dataset")
    several = fields.get("datasets")
    if inner is None and type(several) in (list, tuple) and several:
        inner = several[0]
    return None if inner is None or depth == 0 else dataset_path(inner, depth - 1)


def dataset_disk(dataset: Any, root: Path = Path("/")) -> DatasetDisk | None:
    """Return the disk of a dataset; None if it has no path, or if mounts are unknown."""
    path = dataset_path(dataset)
    mount = None if path is None else mount_of(path.resolve())
    if path is None or mount is None:
        return None
    return DatasetDisk(
        mount=mount.mountpoint,
        file_system=mount.fstype,
        source=mount.device,
        is_network=mount.fstype in NETWORK_FILE_SYSTEMS,
        is_rotational=_is_rotational(path, root),
    )


def _is_rotational(path: Path, root: Path) -> bool | None:
    """Return whether a path is on a spinning disk; None if the kernel does not report it."""
    if not hasattr(os, "major"):  # Windows
        return None
    device = path.stat().st_dev
    disk = root / "sys" / "dev" / "block" / f"{os.major(device)}:{os.minor(device)}"
    for folder in (disk, disk.resolve().parent):  # a partition's queue is its disk's
        flag = read_text(folder / "queue" / "rotational")
        if flag is not None:
            return flag == "1"
    return None


def _largest_entry(batch: Any) -> str:
    """Return how code names the item of a batch that holds most of its objects, e.g. ``'["boxes"]'``; empty if none."""
    counts = {}
    entries = plain.items_of(batch, _MAX_ENTRIES + 1) or []
    for key, value in entries if len(entries) <= _MAX_ENTRIES else ():
        left = plain.search_limit()
        deque(plain.tensors_in(value, 3, in_objects=False, left=left), maxlen=0)
        counts[key] = plain.MAX_VISITED - len(list(left))
    most = max(counts, key=counts.__getitem__, default=None)
    is_most = type(most) in (str, int) and 2 * counts[most] > sum(counts.values())
    return f"[{json.dumps(most)}]" if is_most else ""
