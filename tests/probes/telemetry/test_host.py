"""The host probe, on synthetic trees of proc and sys, and on real processes."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from lightning_perf.cgroups import cgroup_folders, read_cpu_quota_cores
from lightning_perf.probes.telemetry import host
from lightning_perf.probes.telemetry.host import HostReader, numa_nodes, throttling
from lightning_perf.probes.telemetry.probe import dataset_disk, dataset_path
from lightning_perf.probes.telemetry.processes import FetchWatch, KeptFile, WorkerProcesses
from lightning_perf.probes.telemetry.series import MAX_KEPT, MAX_POINTS, MetricTimeline, Series
from tests.probes.settings.test_machine import tree

linux = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel reports no run queues")

# -- quotas ------------------------------------------------------------


def test_throttling_is_of_the_group_throttled_most_when_there_are_several(tmp_path: Path) -> None:
    inner, outer = (
        "nr_periods 100\nnr_throttled 5\nthrottled_usec 200000",
        "nr_periods 90\nnr_throttled 40\nthrottled_usec 3000000",
    )
    tree(tmp_path, {"a/cpu.stat": f"usage_usec 1\n{inner}", "b/cpu.stat": outer, "c/cpu.stat": "nr_periods 0"})
    files = [str(tmp_path / name / "cpu.stat") for name in "abcd"]
    assert throttling(files) == {"throttle_periods": 90, "throttled_periods": 40, "throttled_s": 3.0}


def test_throttling_is_read_from_v1_which_counts_nanoseconds_and_is_empty_without_a_quota(tmp_path: Path) -> None:
    files = [str(tmp_path / "cpu.stat")]
    tree(tmp_path, {"cpu.stat": "nr_periods 10\nnr_throttled 4\nthrottled_time 2500000000"})
    assert throttling(files)["throttled_s"] == 2.5
    tree(tmp_path, {"cpu.stat": "nr_periods 0\nnr_throttled 0\nthrottled_time 0"})
    assert throttling(files) == {}


def host_tree(root: Path, **files: str) -> Path:
    return tree(root, {"proc/self/cgroup": "0::/job", "sys/fs/cgroup/job/cpu.max": "150000 100000", **files})


def test_child_of_a_limited_cgroup_is_reported_with_its_limits_when_it_was_throttled(tmp_path: Path) -> None:
    stat = "sys/fs/cgroup/job/cpu.stat"
    root = host_tree(tmp_path, **{stat: "nr_periods 100\nnr_throttled 10\nthrottled_usec 1000000"})
    reader = HostReader(root)
    tree(root, {stat: "nr_periods 200\nnr_throttled 60\nthrottled_usec 4000000"})
    reader.add(reader.read(time.monotonic() + 1), 1.0)
    record = reader.record({})
    assert (record.throttle_periods, record.throttled_periods, record.throttled_s) == (100, 50, 3.0)
    assert read_cpu_quota_cores(root) == 1.5


_SPIN = """
import sys, time
sys.path.insert(0, sys.argv[2])
from lightning_perf.probes.telemetry.host import HostReader
from lightning_perf.probes.settings.machine import read_machine
open(sys.argv[1] + "/cgroup.procs", "w").write("0")
reader = HostReader()
until = time.monotonic() + 1
while time.monotonic() < until:
    pass
reader.add(reader.read(time.monotonic()), 1.0)
record = reader.record({})
print(read_machine().cpu_quota_cores, record.throttle_periods, record.throttled_periods)
"""


def test_real_child_is_reported_with_its_limits_when_cgroups_are_writable() -> None:
    folder = next((f for f in cgroup_folders(Path("/"), "cpu") if (f / "cpu.cfs_quota_us").exists()), None)
    group = None if folder is None else folder / f"lightning-perf-test-{os.getpid()}"
    try:
        if group is None:
            raise OSError("no writable CPU cgroup of version 1")
        group.mkdir()
    except OSError as error:
        pytest.skip(f"cgroups cannot be written here: {error}")
    try:
        (group / "cpu.cfs_quota_us").write_text("20000")
        repo = str(Path(__file__).parents[3])
        done = subprocess.run(
            [sys.executable, "-c", _SPIN, str(group), repo], capture_output=True, text=True, timeout=120, check=True
        )
        quota, periods, throttled = done.stdout.split()
        assert float(quota) == 0.2
        assert int(periods) >= int(throttled) > 0
    finally:
        group.rmdir()


# -- queues and cores ------------------------------------------------------------


def test_cores_are_those_of_the_process_when_it_computes() -> None:
    reader = HostReader()
    begin_s, cpu_s = time.monotonic(), time.process_time()
    reader.read(begin_s)
    while time.process_time() - cpu_s < 0.2:
        sum(range(1000))
    sample = reader.read(time.monotonic())
    spent = sample["process_cpu_cores"] * sample["passed_s"]
    assert spent == pytest.approx(time.process_time() - cpu_s, abs=0.1)
    assert 0 <= sample["cpu_busy_fraction"] <= 1
    assert sample["rss_bytes"] > 2**20
    reader.close()


def test_sample_counts_only_when_it_covers_time() -> None:
    reader = HostReader()
    reader.add({}, 1.0)
    assert reader.record({}).n_samples == 0
    reader.add(reader.read(time.monotonic() + 1), 1.0)
    assert reader.record({"batch_bytes": 7}).n_samples == 1
    assert reader.record({"batch_bytes": 7}).batch_bytes == 7


class ScriptedClock:
    def __init__(self, *readings: tuple[int, int] | None) -> None:
        self.readings = list(readings)

    def numbers(self) -> tuple[int, int] | None:
        return self.readings.pop(0)


def fetch(made: FetchWatch, number: int, work: Callable[[], object] = lambda: None) -> None:
    """Notify the watch as the loop does, only of the fetches that it samples."""
    if number >= made.next_step:
        made.begins(number)
    work()
    if made.is_sampling:
        made.ends()


def watch(now: list[int], *readings: tuple[int, int] | None) -> FetchWatch:
    ran = [reading[0] for reading in readings if reading is not None]
    made = FetchWatch(lambda: now.pop(0), lambda: ran.pop(0))
    made.close()
    made._clock = ScriptedClock(*readings)  # type: ignore[assignment]
    return made


def test_fetch_is_blocked_when_the_thread_neither_runs_nor_queues() -> None:
    made = watch([1000, 2000], (10, 20), (110, 220))
    for number in range(FetchWatch.INTERVAL_STEPS + 1):
        fetch(made, number)
    assert made.fractions() == (pytest.approx(0.7), pytest.approx(0.2))


def test_fetch_is_unknown_when_the_kernel_does_not_report_it() -> None:
    made = watch([], None, None)
    for number in range(2 * FetchWatch.INTERVAL_STEPS + 1):
        fetch(made, number)
    assert made.fractions() == (None, None)
    assert KeptFile("/nowhere").numbers() is None


def test_kept_file_closes_its_file_once_when_an_interrupt_follows(tmp_path: Path) -> None:
    (tmp_path / "schedstat").write_text("1 2 3")
    clock = KeptFile(str(tmp_path / "schedstat"))
    closed = []

    def close_and_interrupt(descriptor: int) -> None:
        closed.append(descriptor)
        raise SystemExit

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "close", close_and_interrupt)
        with pytest.raises(SystemExit):
            clock.close()
        clock.close()
    assert len(closed) == 1
    os.close(closed[0])


def test_fetches_are_sampled_less_often_when_enough_were() -> None:
    reads = iter(range(10**6))
    made = FetchWatch(lambda: 0, lambda: next(reads))
    made.close()
    made._clock = ScriptedClock(*[(0, 0)] * 10_000)  # type: ignore[assignment]

    numbers = itertools.count(1)

    def n_samples_in(n_fetches: int) -> int:
        before = next(reads)
        for _ in range(n_fetches):
            fetch(made, next(numbers))
        return (next(reads) - before - 1) // 2  # at the beginning and at the end of a fetch

    assert n_samples_in(FetchWatch.INTERVAL_STEPS * FetchWatch.N_FREQUENT) == FetchWatch.N_FREQUENT
    assert n_samples_in(FetchWatch.LATER_INTERVAL_STEPS * 10) == 10


@linux
def test_fetch_is_not_blocked_when_it_computes_for_less_than_a_tick_of_the_kernel() -> None:
    # By this clock what a hypervisor takes from a thread has not passed.
    made = FetchWatch(time.thread_time_ns)
    for number in range(40 * FetchWatch.INTERVAL_STEPS):
        fetch(made, number, lambda: sum(range(10_000)))  # a fraction of a millisecond
    made.close()
    blocked, queueing = made.fractions()
    assert blocked < 0.4 * (1 - queueing) + 0.05


@linux
def test_fetch_is_blocked_when_it_sleeps_and_not_when_it_computes() -> None:
    def fractions(work: Callable[[], object]) -> tuple[float, float]:
        made = FetchWatch(time.perf_counter_ns)
        for number in range(2 * FetchWatch.INTERVAL_STEPS + 1):
            fetch(made, number, work)
        made.close()
        return made.fractions()  # type: ignore[return-value]

    asleep = fractions(lambda: time.sleep(0.01))
    # A hypervisor that takes the core makes computing look blocked: not each time.
    computing = min(fractions(lambda: sum(range(100_000))) for _ in range(5))
    assert asleep[0] > 0.6 * (1 - asleep[1])
    assert computing[0] < 0.6 * (1 - computing[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_workers_are_those_that_run_this_program_when_others_were_started_too() -> None:
    before = {process.pid for process in WorkerProcesses().processes()}  # left by other tests of this process
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    try:
        workers = WorkerProcesses()
        assert {process.pid for process in workers.processes()} - before == {pid}
        assert workers.pids() >= {os.getpid(), pid, other.pid}
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        other.kill()
        other.wait()
    assert pid not in {process.pid for process in workers.processes()}


def workers_among(
    root: Path, patch: pytest.MonkeyPatch, processes: dict[int, tuple[int, str, str]], group: int = os.getpgrp()
) -> set[int]:
    """Return which processes are workers of this one; each has a parent, a command line and an environment."""
    me = os.getpid()
    files = {f"{me}/cmdline": "python\0train.py", f"{me}/environ": ""}
    for pid, (parent, command, environ) in processes.items():
        stat = f"{pid} (pt_data (worker)) S {parent} {group} 1"
        files |= {f"{pid}/cmdline": command, f"{pid}/environ": environ, f"{pid}/stat": stat}
    for parent in (me, *processes):
        children = [str(pid) for pid, (of, *_) in processes.items() if of == parent]
        files[f"{parent}/task/{parent}/children"] = " ".join(children)
    patch.setattr("lightning_perf.probes.telemetry.processes._process", lambda pid: SimpleNamespace(pid=pid))
    return {process.pid for process in WorkerProcesses(tree(root, files)).processes()}


def test_servers_of_multiprocessing_are_no_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    me, fork_server = os.getpid(), "python\0-c\0from multiprocessing.forkserver import main; main(5)"
    processes = {
        1: (me, "python\0-c\0from multiprocessing.resource_tracker import main;main(4)", ""),
        2: (me, fork_server, ""),
        3: (2, fork_server, ""),
        4: (me, "python\0-c\0from multiprocessing.spawn import spawn_main; spawn_main(4)", ""),
    }
    assert workers_among(tmp_path, monkeypatch, processes) == {3, 4}


def test_children_of_a_loader_probe_are_no_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processes = {1: (os.getpid(), "python\0train.py", "")}
    assert workers_among(tmp_path, monkeypatch, processes) == {1}
    assert workers_among(tmp_path, monkeypatch, processes, group=1) == set()


def test_workers_of_rank_0_are_known_when_they_inherit_the_rank_that_lightning_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")  # after the start of this process
    environs = {1: "", 2: "A=1\0LOCAL_RANK=0\0", 3: "LOCAL_RANK=1"}
    processes = {pid: (os.getpid(), "python\0train.py", environ) for pid, environ in environs.items()}
    assert workers_among(tmp_path, monkeypatch, processes) == {1, 2}


def test_numa_nodes_have_their_cores_when_the_kernel_reports_them(tmp_path: Path) -> None:
    nodes = "sys/devices/system/node"
    tree(tmp_path, {f"{nodes}/node0/cpulist": "0-2,8", f"{nodes}/node1/cpulist": "3"})
    assert numa_nodes(tmp_path) == {0: {0, 1, 2, 8}, 1: {3}}
    assert numa_nodes(tmp_path / "nowhere") == {}


# -- the dataset's disk ------------------------------------------------------------


def test_dataset_names_its_path_when_it_is_wrapped_or_lists_files(tmp_path: Path) -> None:
    images = SimpleNamespace(samples=[(str(tmp_path), 0)])
    assert dataset_path(SimpleNamespace(dataset=SimpleNamespace(datasets=[images]))) == tmp_path
    assert dataset_path(SimpleNamespace(root="/does/not/exist", name="x")) is None
    assert dataset_path([1, 2]) is None
    assert dataset_path(SimpleNamespace(samples=np.ones(3))) is None


def report_mounts(patch: pytest.MonkeyPatch, *mounts: tuple[str, str, str]) -> None:
    """Let psutil list these mounts: device, folder and file system."""
    listed = [SimpleNamespace(device=device, mountpoint=folder, fstype=kind) for device, folder, kind in mounts]
    patch.setattr(psutil, "disk_partitions", lambda **_: listed)


def test_disk_is_of_the_nearest_mount_when_mounts_nest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    report_mounts(
        monkeypatch,
        ("/dev/vda", "/", "ext4"),
        ("/dev/vdb", str(tmp_path), "ext4"),
        ("server:/export", str(tmp_path), "nfs4"),
        ("/dev/sda1", f"{tmp_path}/other", "xfs"),
    )
    device = data.stat().st_dev
    queue = f"sys/dev/block/{os.major(device)}:{os.minor(device)}/queue"
    root = tree(tmp_path / "root", {f"{queue}/rotational": "1"})
    disk = dataset_disk(SimpleNamespace(root=data), root)
    assert (disk.mount, disk.file_system, disk.source) == (str(tmp_path), "nfs4", "server:/export")
    assert (disk.is_network, disk.is_rotational) == (True, True)
    local = dataset_disk(SimpleNamespace(root="/usr"), tmp_path / "nowhere")
    assert (local.mount, local.is_network, local.is_rotational) == ("/", False, None)
    assert dataset_disk(SimpleNamespace(), root) is None


def test_disk_is_unknown_when_the_mounts_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unreadable(**_: Any) -> Any:
        raise OSError

    monkeypatch.setattr(psutil, "disk_partitions", unreadable)
    assert dataset_disk(SimpleNamespace(root=tmp_path)) is None


# -- series ------------------------------------------------------------


def test_spread_is_weighted_by_time_when_samples_are_uneven() -> None:
    series = Series()
    series.add(1.0, 9.0)
    series.add(100.0, 1.0)
    spread = series.spread()
    assert (spread.n, spread.p50, spread.p95, spread.min, spread.max) == (2, 1.0, 100.0, 1.0, 100.0)
    assert spread.mean == pytest.approx(10.9)


def test_spread_keeps_its_quantiles_in_constant_memory_when_a_run_is_long() -> None:
    series = Series()
    for i in range(50_000):
        series.add(float(i), 1.0)
    spread = series.spread()
    assert len(series._values) <= MAX_KEPT
    assert (spread.n, spread.min, spread.max) == (50_000, 0.0, 49_999.0)
    assert [spread.p5, spread.p50, spread.p95] == pytest.approx([2500, 25_000, 47_500], rel=0.02)


def test_timeline_keeps_its_means_in_constant_memory_when_a_run_is_long() -> None:
    timeline = MetricTimeline()
    for i in range(1000):
        timeline.add(float(i), i, {"a": float(i)} if i % 2 else {"a": float(i), "b": 1.0})
    points = timeline.records()
    assert len(points) <= MAX_POINTS
    assert sum(point.n_samples for point in points) == 1000
    assert points[0].start_s == 0.0
    assert [point.start_s for point in points] == sorted(point.start_s for point in points)
    n = points[1].n_samples
    assert points[1].values == {"a": pytest.approx(n + (n - 1) / 2, rel=1e-3), "b": 1.0}


def test_texts_of_a_dataset_are_no_paths() -> None:
    assert dataset_path(SimpleNamespace(samples=["a long text " * 400])) is None
    assert dataset_path(SimpleNamespace(samples=["a\0b"])) is None


def test_busiest_disk_is_the_one_that_is_busy_now(monkeypatch: pytest.MonkeyPatch) -> None:
    busy_ms = {"old": 9_000_000, "data": 1000, "loop0": 0}

    def counters(**_: Any) -> dict[str, Any]:
        return {name: SimpleNamespace(busy_time=ms) for name, ms in busy_ms.items()}

    monkeypatch.setattr(psutil, "disk_io_counters", counters)
    reader = HostReader()
    begin_s = time.monotonic()
    reader.read(begin_s)
    busy_ms |= {"old": 9_000_010, "data": 1900, "loop0": 1000, "new": 5000}
    assert reader.read(begin_s + 1.0)["disk_busy_fraction"] == pytest.approx(0.9)
    reader.close()


def test_bytes_of_workers_are_rates_and_left_out_where_this_process_s_are_not_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def rates(own: list[tuple[int, int] | None]) -> dict[str, float]:
        readings = iter(own)
        monkeypatch.setattr(host, "_storage_bytes", lambda _: next(readings))
        monkeypatch.setattr(HostReader, "_read_workers", lambda *_: {"read_bytes": 600.0, "write_bytes": 0.0})
        reader = HostReader(host_tree(tmp_path))
        at_s = time.monotonic()
        reader.read(at_s)
        return dict(reader.read(at_s + 2.0))

    sample = rates([(0, 0), (0, 0), (1000, 0)])
    assert sample["read_bytes_per_s"] == pytest.approx(800.0)
    assert not {"read_bytes", "write_bytes"} & sample.keys()
    assert not {"read_bytes_per_s", "read_bytes"} & rates([None, None, None]).keys()
