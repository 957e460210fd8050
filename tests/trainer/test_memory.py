"""Memory with a real Trainer: leaks that are planted, leaks that are not there, and running out."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from torch import nn
from torch.utils.data import DataLoader, Dataset

from lightning_perf import PerfDoctor, load
from lightning_perf.probes.memory import growth
from lightning_perf.probes.memory import probe as memory
from lightning_perf.probes.memory import probe as memory_probe
from lightning_perf.probes.memory.host_memory import c_heap
from lightning_perf.records import SESSION_FILE
from lightning_perf.reports.brief import MAX_LINES
from tests.fakes import FakeAllocator

from .conftest import Make, assert_nothing_left

BATCH, WIDTH, N_STEPS = 64, 64, 200


class Samples(Dataset):
    """Random samples; kept in memory if ``is_cached``."""

    def __init__(self, n_batches: int = N_STEPS, is_cached: bool = False) -> None:
        self.n = n_batches * BATCH
        self.cache: dict[int, torch.Tensor] | None = {} if is_cached else None

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.cache is not None:
            self.cache[index] = torch.randn(4096)
        return torch.ones(WIDTH) * (index % 7)


class LitModel(LightningModule):
    """A small network that keeps something at each step."""

    def __init__(self, keeps: str = "") -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1))
        self.keeps = keeps
        self.losses: list[torch.Tensor] = []
        self.kept: list[torch.Tensor] = []
        self.noise: list[torch.Tensor] = []
        self._random = random.Random(3)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = self.net(batch).square().mean()
        if self.keeps == "unused losses":
            self.losses.append(self.net(batch).mean())  # never goes backward: its activations stay
        elif self.keeps == "losses":
            self.losses.append(loss)
        elif self.keeps == "tensors":
            self.kept.append(torch.ones(60_000))
        elif self.keeps == "noise":
            self.noise.append(torch.ones(self._random.randint(1_000, 400_000)))
            while len(self.noise) > self._random.randint(1, 20):
                self.noise.pop(self._random.randrange(len(self.noise)))
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=1e-4)


@pytest.fixture(autouse=True)
def _others_have_ended(frozen_objects: None) -> None:
    """Free trainings of earlier tests, so that neither they nor the holes they leave count in this one."""
    trim_heap()


@pytest.fixture(autouse=True)
def _readings_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the heap at each stride: after other tests, one reading may take longer than its budget allows."""
    monkeypatch.setattr(growth, "FREE_NS", 10**12)


@pytest.fixture
def freed_memory() -> Iterator[None]:
    """Leave a quarter of a GiB of free heap below memory in use, as after other work."""
    torch.ones(31 * 2**18)  # freed at once; glibc then lays blocks of up to this size into the heap
    room = [torch.ones(16_000) for _ in range(4096)]
    on_top = torch.ones(16_000)  # memory below it is not returned to the system
    del room
    yield
    del on_top
    trim_heap()


def trim_heap() -> None:
    """Return freed memory to the system."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def fitted(make_trainer: Make, model: Any, dataset: Any = None, **loader: Any) -> Any:
    doctor = PerfDoctor(reports=[], schedule=None)
    make_trainer(doctor).fit(model, DataLoader(dataset or Samples(), batch_size=BATCH, **loader))
    assert doctor.session is not None
    assert doctor.session.probes_off == ()
    return doctor.session


def finding_of(session: Any, code: str) -> Any:
    return next((f for f in session.findings if f.code == code), None)


@pytest.mark.parametrize(
    ("keeps", "name"),
    [("unused losses", "LitModel.losses"), ("losses", "LitModel.losses"), ("tensors", "LitModel.kept")],
)
def test_planted_leak_is_found_and_named_within_200_steps(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch, keeps: str, name: str
) -> None:
    monkeypatch.setattr(growth, "FREE_NS", 10**12)  # reading a heap with many holes takes long, after other tests
    session = fitted(make_trainer, LitModel(keeps))
    finding = finding_of(session, "PD405")
    assert finding is not None, session.memory.growth
    assert name in finding.summary
    assert (finding.severity == "low") == (keeps == "losses")  # the others fill memory sooner


@pytest.mark.skipif(c_heap()[0] is None, reason="the C library does not report bytes in use on its heap")
@pytest.mark.usefixtures("freed_memory")
@pytest.mark.parametrize(("keeps", "name"), [("unused losses", "LitModel.losses"), ("tensors", "LitModel.kept")])
def test_leak_is_found_when_freed_memory_of_the_heap_takes_it(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch, keeps: str, name: str
) -> None:
    monkeypatch.setattr(growth, "FREE_NS", 10**12)  # reading a heap with many holes takes long, after other tests
    session = fitted(make_trainer, LitModel(keeps))
    finding = finding_of(session, "PD405")
    assert finding is not None, session.memory.growth
    assert finding.severity == "high", session.memory.growth
    assert name in finding.summary


def test_growing_cache_is_found_and_named_when_workers_fill_it(make_trainer: Make) -> None:
    session = fitted(make_trainer, LitModel(), Samples(is_cached=True), num_workers=2)
    finding = finding_of(session, "PD113")
    assert finding is not None
    assert "Samples.cache" in finding.summary
    assert finding_of(session, "PD405") is None


@pytest.mark.parametrize("keeps", ["noise", ""])
def test_no_leak_is_reported_when_memory_is_noisy_or_constant(make_trainer: Make, keeps: str) -> None:
    session = fitted(make_trainer, LitModel(keeps))
    assert finding_of(session, "PD405") is None
    assert {g.where for g in session.memory.growth} - {"heap"} == {"host"}


@pytest.mark.parametrize(("part_free", "heap_s"), [(0.0, 0.0), (1.0, 0.0), (0.0, 0.3)])
def test_resident_memory_that_grows_by_free_blocks_of_the_heap_is_no_leak(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch, part_free: float, heap_s: float
) -> None:
    # Less than one slow reading of the heap, which is then read once.
    monkeypatch.setattr(growth, "FREE_NS", 2 * 10**8 if heap_s else 10**12)
    model = LitModel()

    def grown() -> int:
        return 2**20 * model.trainer.global_step

    class Heap:
        free_bytes: int | None = None

        def read(self) -> int:
            time.sleep(heap_s)
            self.free_bytes = round(part_free * grown())
            return 10**8

    monkeypatch.setattr(memory, "c_heap", lambda: (Heap(), ""))
    monkeypatch.setattr(memory.ResidentMemory, "read", lambda self: 10**9 + grown())
    finding = finding_of(fitted(make_trainer, model), "PD405")
    assert (finding is None) == (part_free == 1.0)


def test_training_is_bit_identical_when_its_memory_is_sampled(make_trainer: Make) -> None:
    def weights(*callbacks: Any) -> list[torch.Tensor]:
        torch.manual_seed(5)
        model = LitModel()
        make_trainer(*callbacks).fit(model, DataLoader(Samples(60), batch_size=BATCH, shuffle=True))
        return list(model.parameters())

    doctor = PerfDoctor(reports=[], schedule=None)
    plain, watched = weights(), weights(doctor)
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    assert doctor.session is not None
    assert doctor.session.memory.breakdown is not None
    # The outputs of both activation functions, and what goes into the square.
    assert doctor.session.memory.breakdown.activations_bytes == 2 * 4 * BATCH * 512 + 4 * BATCH


def test_breakdown_and_phases_are_those_of_the_run(make_trainer: Make) -> None:
    model = LitModel()
    memory = fitted(make_trainer, model, Samples(60)).memory
    n_bytes = sum(4 * p.numel() for p in model.parameters())
    breakdown = memory.breakdown
    assert breakdown.parameters_bytes == breakdown.gradients_bytes == n_bytes
    assert breakdown.optimizer_bytes == 2 * n_bytes + 4 * 6
    assert breakdown.batch_bytes == 4 * BATCH * WIDTH
    assert breakdown.n_samples == BATCH
    assert [p.phase for p in memory.host.phases] == ["transfer", "forward", "zero_grad", "backward", "optimizer"]
    assert memory.headroom.largest_batch > BATCH


def test_activations_are_measured_when_optimization_is_manual(make_trainer: Make) -> None:
    class Manual(LitModel):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(self.net(batch).mean())
            optimizer.step()

    breakdown = fitted(make_trainer, Manual(), Samples(20)).memory.breakdown
    assert breakdown.activations_bytes == 2 * 4 * BATCH * 512
    assert breakdown.gradients_basis == "held"


def test_step_runs_when_it_uses_a_functional_transform(make_trainer: Make) -> None:
    class Functional(LitModel):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            slope = torch.func.grad(lambda x: (x**2).sum())(batch)
            return self.net(slope).mean()

    breakdown = fitted(make_trainer, Functional(), Samples(20)).memory.breakdown
    assert breakdown.activations_bytes is None
    assert "torch.func" in breakdown.activations_basis


class RunsOut(LitModel):
    def __init__(self, error: BaseException, at: int = 5) -> None:
        super().__init__()
        self.error, self.at = error, at

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        huge = torch.ones(1_000_003)
        if batch_idx == self.at:
            raise self.error
        return self.net(batch).mean() + 0 * huge.sum()


class Witness(Callback):
    def __init__(self) -> None:
        self.seen: BaseException | None = None

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.seen = exception


@pytest.mark.parametrize("at", [0, 5])
def test_post_mortem_is_on_screen_and_on_disk_when_memory_runs_out(
    make_trainer: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    device = FakeAllocator()
    device.allocate(15 * 2**30)
    monkeypatch.setattr(memory_probe, "allocator_of", lambda _: (device, ""))
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has")
    before, after = Witness(), Witness()
    doctor = PerfDoctor(out_dir=tmp_path / "out", schedule=None)
    trainer = make_trainer(before, doctor, after)
    profiler = trainer.profiler
    with pytest.raises(torch.OutOfMemoryError) as raised:
        trainer.fit(RunsOut(error, at), DataLoader(Samples(10), batch_size=BATCH))
    assert raised.value is error
    assert before.seen is after.seen is error
    assert_nothing_left(trainer, profiler)
    screen = capsys.readouterr().out
    text = (tmp_path / "out" / "out_of_memory.txt").read_text()
    [report] = [line.split()[1] for line in screen.splitlines() if line.startswith("memory  ")]
    assert Path(report).resolve() == (tmp_path / "out" / "out_of_memory.txt").resolve()
    assert len(screen.splitlines()) <= MAX_LINES
    assert "post-mortem: the device ran out of memory" in text
    assert "2.00 GiB requested" in text
    assert "Device memory ran out in forward" in screen
    for shown in (screen, text):
        assert "Tried to allocate 2.00 GiB" in shown
        assert "in forward" in shown
        assert f"{BATCH}x{WIDTH}" in shown
    oom = load(tmp_path / "out" / SESSION_FILE).memory.oom
    assert oom is not None
    assert (oom.step, oom.phase, oom.requested_bytes) == (at, "forward", 2 * 2**30)
    assert oom.batch_shapes == {"batch": (BATCH, WIDTH)}
    assert "in training_step" in oom.code


@pytest.mark.parametrize(("stage", "phase"), [("validate", "validation"), ("test", "forward"), ("predict", "forward")])
def test_post_mortem_outside_of_fit_names_batches_and_its_own_file(
    make_trainer: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str], stage: str, phase: str
) -> None:
    class Evaluated(LitModel):
        def runs_out(self, batch: Any, batch_idx: int) -> None:
            if batch_idx == 2:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has")

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.runs_out(batch, batch_idx)

        def test_step(self, batch: Any, batch_idx: int) -> None:
            self.runs_out(batch, batch_idx)

        def predict_step(self, batch: Any, batch_idx: int) -> None:
            self.runs_out(batch, batch_idx)

    doctor = PerfDoctor(out_dir=tmp_path, schedule=None)
    with pytest.raises(torch.OutOfMemoryError):
        getattr(make_trainer(doctor), stage)(Evaluated(), DataLoader(Samples(10), batch_size=BATCH))
    screen = capsys.readouterr().out
    assert f"Device memory ran out in {phase} after 2 batches" in screen
    assert f"set batch_size={BATCH // 2} (now {BATCH})" in screen
    assert "accumulate_grad_batches" not in screen
    assert "after 2 batches" in (tmp_path / f"out_of_memory_{stage}.txt").read_text()


def test_killed_worker_is_reported_as_killed(make_trainer: Make, tmp_path: Path) -> None:
    doctor = PerfDoctor(reports=["json"], out_dir=tmp_path, schedule=None)
    error = RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")
    with pytest.raises(RuntimeError, match="killed by signal"):
        make_trainer(doctor).fit(RunsOut(error), DataLoader(Samples(10), batch_size=BATCH, num_workers=2))
    assert doctor.session is not None
    assert doctor.session.memory.oom.where == "worker"
    assert "num_workers=1" in finding_of(doctor.session, "PD408").prescriptions[0].code


def test_other_errors_have_no_post_mortem(make_trainer: Make, tmp_path: Path) -> None:
    doctor = PerfDoctor(out_dir=tmp_path / "out", schedule=None)
    with pytest.raises(ValueError, match="planted"):
        make_trainer(doctor).fit(RunsOut(ValueError("planted")), DataLoader(Samples(10), batch_size=BATCH))
    assert doctor.session is not None
    assert doctor.session.memory.oom is None
    assert not (tmp_path / "out" / "out_of_memory.txt").exists()


def test_history_is_refused_with_its_reason_when_there_is_no_device(make_trainer: Make) -> None:
    doctor = PerfDoctor(reports=[], schedule=None, memory_snapshot=True)
    make_trainer(doctor).fit(LitModel(), DataLoader(Samples(5), batch_size=BATCH))
    assert doctor.session is not None
    assert "CUDA only" in doctor.session.missing["memory.oom.history"]
