"""Memory at phase boundaries of sampled steps, on a fake device."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from lightning_perf.cgroups import free_bytes, read_memory_within_limit
from lightning_perf.probes.memory.allocation_history import read_history
from lightning_perf.probes.memory.breakdown import headroom_of
from lightning_perf.probes.memory.host_memory import read_host_memory
from lightning_perf.probes.memory.phase_memory import Allocator, PhaseReadings, allocator_of
from lightning_perf.probes.memory.probe import MemoryProbe
from lightning_perf.records import Breakdown, DeviceMemory, HostMemory, Machine, Run, Session
from lightning_perf.rules.engine import diagnose
from tests.fakes import FakeAllocator, FakeClock

GIB = 2**30
N_PARAMETER_BYTES = 4 * (8 * 8 + 8)


class Loop:
    """A fake loop probe."""

    def __init__(self) -> None:
        self.owner, self.stage = None, "fit"
        self.listener: Any = None
        self.n_left_out = 0
        self.main = SimpleNamespace(leave_out=self._leave_out, n_steps=0)

    def _leave_out(self) -> None:
        self.n_left_out += 1

    def listen(self, listener: Any) -> None:
        self.listener = listener


class Training:
    """A training on a fake device, whose allocator gets the tensors of each step."""

    def __init__(
        self,
        total_bytes: int = 16 * GIB,
        world_size: int = 1,
        wants_history: bool = False,
        folder: Path | None = None,
        device: FakeAllocator | None = None,
    ) -> None:
        self.module = nn.Linear(8, 8)
        self.device = FakeAllocator(total_bytes=total_bytes) if device is None else device
        self.device.n_retries = self.device.n_ooms = 3  # of an earlier training in this process
        self.loop = Loop()
        self.errors: list[Exception] = []
        trainer = SimpleNamespace(
            strategy=SimpleNamespace(root_device=torch.device("cpu")),
            optimizers=[torch.optim.Adam(self.module.parameters())],
            callbacks=[], loggers=[], datamodule=None, train_dataloader=None,
            world_size=world_size, global_rank=world_size - 1,
        )  # fmt: skip
        run = SimpleNamespace(
            trainer=trainer, pl_module=self.module, loop=self.loop, now_ns=FakeClock(), folder=folder,
            options=SimpleNamespace(memory_snapshot=wants_history),
            probes=SimpleNamespace(switch_off=lambda name, error: self.errors.append(error)),
        )  # fmt: skip
        self.probe = MemoryProbe(run, self.device)  # type: ignore[arg-type]

    def step(self, samples: int, activations: int, fixed: int = 0, fragmented: int = 0, kept: int = 0) -> None:
        self.probe.step_begins(torch.zeros(samples, 8))
        listener = self.loop.listener
        if listener is not None:
            listener.enters("training_step")
        loss = self.module(torch.zeros(samples, 8)).sum()
        self.device.allocate(activations, fragmented)
        for name in ("training_step", "zero_grad", "backward", "optimizer_step"):
            if name == "backward":
                loss.backward()
                self.device.free(activations - kept)
            if listener is not None:
                listener.leaves(name)
        self.probe.step_ends()
        self.loop.main.n_steps += 1

    def diagnosed(self, code: str) -> Any:
        """Return the result of the rule."""
        assert self.errors == []
        run = Run(id="x", stage="fit", status="finished", started_at="", wall_s=1.0)
        session = Session(run=run, machine=Machine(os="", python=""), memory=self.probe.record())
        return next((f for f in diagnose(session).findings if f.code == code), None)


def test_phases_hold_what_was_allocated_after_each_when_steps_are_sampled() -> None:
    training = Training()
    training.device.allocate(GIB)
    for _ in range(60):
        training.step(4, 2 * GIB)
    (device,) = training.probe.record().devices
    assert {p.phase: p.allocated_bytes for p in device.phases} == {
        "transfer": GIB, "forward": 3 * GIB, "zero_grad": 3 * GIB, "backward": GIB, "optimizer": GIB,
    }  # fmt: skip
    assert {p.n for p in device.phases} == {3}  # steps 1, 2 and 52
    assert device.peak_allocated_bytes == 3 * GIB
    assert (device.alloc_retries, device.ooms) == (0, 0)


def test_peak_is_attributed_to_the_phase_that_raised_it_and_never_reset() -> None:
    training = Training()
    training.step(4, GIB)
    training.step(4, 2 * GIB)
    (device,) = training.probe.record().devices
    assert device.peak_phase == "forward"
    assert [p.peak_bytes for p in device.phases if p.phase == "forward"] == [2 * GIB]
    assert not hasattr(training.device, "reset_peak")  # there is nothing to reset with


def test_reading_stays_rare_when_a_run_is_long() -> None:
    training = Training()
    for _ in range(2000):
        training.step(4, 1000)
    # 42 sampled steps of 5 readings, and readings for the trend.
    assert training.device.n_reads < 600
    assert training.loop.listener is None


def test_breakdown_is_taken_in_one_step_which_counts_in_no_statistic() -> None:
    training = Training()
    for _ in range(10):
        training.step(4, 1000)
    breakdown = training.probe.record().breakdown
    assert breakdown is not None
    assert breakdown.parameters_bytes == breakdown.gradients_bytes == N_PARAMETER_BYTES
    assert breakdown.gradients_basis == "held"
    assert (breakdown.step, breakdown.n_samples) == (2, 4)
    assert 1 <= training.loop.n_left_out <= 3


def test_probe_is_off_when_the_allocator_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training()
    monkeypatch.setattr(training.device, "read", lambda: 1 / 0)
    for _ in range(5):
        training.step(4, 1000)
    assert [type(e) for e in training.errors] == [ZeroDivisionError]
    assert training.loop.listener is None


@pytest.mark.parametrize(
    ("used", "severity"), [(0.9199, None), (0.9201, "medium"), (0.9699, "medium"), (0.9701, "high")]
)
def test_near_capacity_is_found_from_its_thresholds_on(used: float, severity: str | None) -> None:
    training = Training()
    training.step(4, int(used * 16 * GIB))
    finding = training.diagnosed("PD401")
    assert (finding.severity if finding else None) == severity


@pytest.mark.parametrize(("fragmented", "is_found"), [(2 * GIB - 1, False), (2 * GIB, True)])
def test_fragmentation_is_found_from_half_as_much_again_on(fragmented: int, is_found: bool) -> None:
    training = Training()
    training.step(4, 4 * GIB, fragmented=fragmented)
    training.device.inactive_split = 0
    assert (training.diagnosed("PD404") is not None) == is_found


@pytest.mark.parametrize(("used", "is_found"), [(8 * GIB - 1, True), (8 * GIB, False)])
def test_unused_headroom_is_found_below_half(used: int, is_found: bool) -> None:
    training = Training()
    for _ in range(3):
        training.step(4, used)
    finding = training.diagnosed("PD406")
    assert (finding is not None) == is_found
    if finding is not None:
        assert "up to 7" in finding.prescriptions[0].summary  # 2 GiB per sample, of 14.4


@pytest.mark.parametrize(("second", "is_found"), [(8 * GIB, False), (12 * GIB, True)])
def test_retries_are_found_when_the_cache_had_to_be_flushed(second: int, is_found: bool) -> None:
    training = Training()
    training.step(4, 4 * GIB, fragmented=4 * GIB)
    training.step(4, second, fragmented=6 * GIB if is_found else 0)
    assert (training.diagnosed("PD407") is not None) == is_found


def test_oom_is_reported_with_phase_and_request_when_the_device_is_full(tmp_path: Path) -> None:
    training = Training()
    training.step(4, 4 * GIB)
    assert training.diagnosed("PD408") is None
    with pytest.raises(MemoryError):
        training.step(4, 17 * GIB)
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has")
    training.probe.run_ends(error)
    finding = training.diagnosed("PD408")
    assert finding.severity == "high"
    assert "2 GiB" in finding.summary


def test_leak_of_the_device_is_found_when_tensors_are_kept() -> None:
    training = Training()
    for _ in range(200):
        training.step(4, 10**7, kept=10**5)
    finding = training.diagnosed("PD405")
    assert finding is not None
    assert "cuda:0" in finding.summary
    growth = next(g for g in training.probe.record().growth if g.where == "cuda:0")
    assert growth.bytes_per_step == pytest.approx(10**5, rel=0.01)


def test_headroom_per_sample_is_at_least_what_one_batch_saved() -> None:
    saved = 8 * GIB
    breakdown = Breakdown(device="cuda:0", activations_bytes=saved, activations_basis="saved tensors", n_samples=32)
    device = DeviceMemory(
        device="cuda:0", peak_allocated_bytes=10 * GIB, peak_reserved_bytes=10 * GIB, total_bytes=16 * GIB
    )
    sizes = [(32, 9 * GIB), (17, 9 * GIB - 1000)]  # the last batch of an epoch, with longer samples
    headroom = headroom_of(breakdown, device, HostMemory(rss_bytes=GIB), None, sizes)
    assert headroom is not None
    assert headroom.per_sample_bytes == saved / 32
    assert headroom.largest_batch == int((0.9 * 16 - 2) * 4)


@pytest.mark.parametrize("ends", ["below the earlier peak", "above it", "after a retry"])
def test_peak_of_an_earlier_run_is_not_reported_as_that_of_this_one(ends: str) -> None:
    device = FakeAllocator()
    device.allocate(15 * GIB)
    device.free(15 * GIB)
    training = Training(device=device)
    for _ in range(10):
        training.step(4, GIB)
    hidden = training.probe.record()
    assert hidden.devices == ()
    assert hidden.breakdown is not None
    assert hidden.breakdown.peak_bytes is None
    assert "memory.devices" in training.probe.reasons()
    if ends == "above it":
        training.step(4, 15 * GIB + 1)
    elif ends == "after a retry":
        device.n_retries += 1
    devices = training.probe.record().devices
    assert [each.peak_allocated_bytes for each in devices] == ([] if ends == "below the earlier peak" else
                                                               [device.peak_allocated])  # fmt: skip
    assert ("memory.devices" in training.probe.reasons()) == (not devices)


@pytest.mark.parametrize(("basis", "n_free"), [("machine", 3.4), ("cgroup", 13.4)])
def test_largest_batch_leaves_what_other_programs_use_of_the_machine(basis: str, n_free: float) -> None:
    breakdown = Breakdown(device="cpu", activations_bytes=GIB, batch_bytes=0, n_samples=1)
    host = HostMemory(rss_bytes=GIB, peak_rss_bytes=2 * GIB, used_bytes=12 * GIB, limit_bytes=16 * GIB,
                      limit_basis=basis)  # fmt: skip
    headroom = headroom_of(breakdown, None, host, None, ())
    assert headroom is not None
    assert headroom.largest_batch == int(n_free)
    on_device = msgspec.structs.replace(breakdown, device="cuda:0")
    assert headroom_of(on_device, None, host, None, ()) is None


def test_expected_states_are_replaced_once_an_optimizer_holds_its_own() -> None:
    training = Training()
    for _ in range(10):
        training.step(4, 1000)
    expected = training.probe.record().breakdown
    training.module.weight.grad = None  # as of a parameter that the model does not use
    training.probe._trainer.optimizers[0].step()
    held = training.probe.record().breakdown
    assert expected is not None
    assert held is not None
    assert (expected.optimizer_basis, expected.optimizer_bytes) == ("expected", 2 * N_PARAMETER_BYTES)
    assert held.optimizer_basis == "held"
    assert held.optimizer_bytes is not None
    assert held.optimizer_bytes < N_PARAMETER_BYTES


def test_headroom_follows_the_line_when_batches_differ() -> None:
    training = Training()
    training.device.allocate(2 * GIB)
    for i in range(160):
        samples = (8, 16, 4)[i // 50 % 3]
        training.step(samples, samples * GIB // 4)
    headroom = training.probe.record().headroom
    assert headroom is not None
    assert headroom.basis == "observed batches"
    assert headroom.per_sample_bytes == pytest.approx(GIB / 4)
    assert headroom.fixed_bytes == pytest.approx(2 * GIB)
    assert headroom.largest_batch == int((0.9 * 16 - 2) * 4)


# -- small readers ------------------------------------------------------------


def test_nested_statistics_of_torch_are_read() -> None:
    statistics = {
        "allocated_bytes": {"all": {"current": 1, "peak": 2}},
        "reserved_bytes": {"all": {"current": 3, "peak": 4}},
        "inactive_split_bytes": {"all": {"current": 5, "peak": 6}},
        "num_alloc_retries": 7, "num_ooms": 8,
    }  # fmt: skip
    assert tuple(Allocator("cuda:0", lambda: statistics).read()) == (1, 3, 2, 4, 6, 7, 8)
    assert tuple(Allocator("xpu:0", dict).read()) == (0, 0, 0, 0, None, None, None)


def test_cpu_has_no_allocator_and_a_reason() -> None:
    allocator, reason = allocator_of(torch.device("cpu"))
    assert allocator is None
    assert "resident memory" in reason


def test_peak_of_an_earlier_phase_is_not_attributed_to_a_later_step() -> None:
    device = FakeAllocator()
    readings = PhaseReadings(device, _Nothing())  # type: ignore[arg-type]
    device.allocate(GIB)
    readings.begin(4)
    readings.read("transfer")
    readings.read("forward")
    assert readings.peak_phase is None


class _Nothing:
    def read(self) -> None:
        return None


@pytest.mark.parametrize("version", [1, 2])
def test_used_memory_leaves_out_file_cache_that_can_be_dropped(tmp_path: Path, version: int) -> None:
    names = {
        2: ("sys/fs/cgroup/job", "0::/job\n", "memory.max", "memory.current", "inactive_file"),
        1: ("sys/fs/cgroup/memory/job", "4:memory:/job\n", "memory.limit_in_bytes", "memory.usage_in_bytes",
            "total_inactive_file"),
    }[version]  # fmt: skip
    folder, line, limit, used, cache = names
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(line)
    (tmp_path / folder / limit).write_text("1000\n")
    (tmp_path / folder / used).write_text("900\n")
    (tmp_path / folder / "memory.stat").write_text(f"anon 1\n{cache} 300\n")
    assert read_memory_within_limit(tmp_path) == (600, 1000)
    assert free_bytes(tmp_path) == 400
    host = read_host_memory(root=tmp_path)
    assert (host.used_bytes, host.limit_bytes, host.limit_basis) == (600, 1000, "cgroup")


def test_free_memory_is_the_least_that_any_cgroup_has_left(tmp_path: Path) -> None:
    step = tmp_path / "sys/fs/cgroup/job/step"
    (tmp_path / "proc/self").mkdir(parents=True)
    step.mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/job/step\n")
    for folder, limit, used in ((step, 1000, 500), (step.parent, 100_000, 90_000)):
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{used}\n")
    assert read_memory_within_limit(tmp_path) == (90_000, 100_000)
    assert free_bytes(tmp_path) == 500


def test_machine_is_the_limit_when_there_is_no_cgroup(tmp_path: Path) -> None:
    host = read_host_memory(root=tmp_path)
    assert host.limit_basis == "machine"
    assert host.limit_bytes is not None
    assert host.rss_bytes > 0


def test_history_gives_curve_and_sites_when_a_snapshot_is_read() -> None:
    frames = [{"filename": torch.nn.modules.linear.__file__, "line": 1, "name": "forward"},
              {"filename": "/home/me/lightning/model.py", "line": 31, "name": "encode"}]  # fmt: skip
    snapshot = {
        "segments": [{"device": 0, "blocks": [
            {"state": "active_allocated", "size": 700, "frames": frames},
            {"state": "active_allocated", "size": 100, "frames": frames},
            {"state": "inactive", "size": 50, "frames": []},
        ]}],
        "device_traces": [[
            {"action": "alloc", "size": 500}, {"action": "free_requested", "size": 500},
            {"action": "free_completed", "size": 500}, {"action": "alloc", "size": 700},
        ]],
    }  # fmt: skip
    curve, sites = read_history(snapshot)
    assert curve == ((0, 600), (2, 100), (3, 800))  # 100 were there before the history began
    assert [(s.where, s.n_bytes, s.n) for s in sites] == [("model.py:31 in encode", 800, 2)]


class FakeCudaMemory:
    """``torch.cuda.memory`` with an empty history."""

    def __init__(self) -> None:
        self.modes: list[str | None] = []

    def _record_memory_history(self, enabled: str | None, **_: Any) -> None:
        self.modes.append(enabled)

    def _snapshot(self) -> dict[str, Any]:
        return {"segments": [], "device_traces": []}


def test_history_is_recorded_only_while_the_probe_can_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = FakeCudaMemory()
    monkeypatch.setattr("lightning_perf.probes.memory.probe.history_of", lambda _: (memory, ""))
    probe = Training(wants_history=True).probe
    assert memory.modes == []  # an interrupt here would leave it on
    probe.start()
    probe.close()
    assert memory.modes == ["all", None]


@pytest.mark.parametrize(("world_size", "name"), [(1, "memory_snapshot.pickle"), (4, "memory_snapshot_rank3.pickle")])
def test_each_rank_writes_a_history_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, world_size: int, name: str
) -> None:
    monkeypatch.setattr("lightning_perf.probes.memory.probe.history_of", lambda _: (FakeCudaMemory(), ""))
    probe = Training(world_size=world_size, wants_history=True, folder=tmp_path).probe
    probe.training_ends()
    assert [file.name for file in tmp_path.iterdir()] == [name]
