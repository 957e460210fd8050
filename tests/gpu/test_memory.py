"""Memory on a real device: running out, fragmentation, and reading without waiting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader

from lightning_perf import PerfDoctor
from lightning_perf.probes.memory.phase_memory import allocator_of
from lightning_perf.records import SESSION_FILE, DeviceMemory, Machine, Memory, Run, Session, load
from lightning_perf.rules.engine import diagnose

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]

GIB = 2**30


class Grows(LightningModule):
    """Takes twice as much memory at each step."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(1024, 1024)
        self.n_rows = 1024

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.n_rows *= 2
        hidden = self.net(batch.expand(self.n_rows, 1024).contiguous())
        return hidden.relu().square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters())


@pytest.fixture(autouse=True)
def _capped_device() -> Any:
    """A small part of the device, so that running out takes no other process with it."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, 6 * GIB / total), 0)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0, 0)
    torch.cuda.empty_cache()


def test_real_running_out_has_a_post_mortem_with_history(tmp_path: Path) -> None:
    doctor = PerfDoctor(reports=["json"], out_dir=tmp_path, schedule=None, memory_snapshot=True)
    trainer = Trainer(
        accelerator="gpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[doctor], default_root_dir=tmp_path,
    )  # fmt: skip
    with pytest.raises(torch.OutOfMemoryError):
        trainer.fit(Grows(), DataLoader(torch.ones(64, 1024), batch_size=1))
    oom = load(tmp_path / SESSION_FILE).memory.oom
    assert oom is not None
    assert oom.where == "device"
    assert oom.requested_bytes
    assert oom.largest_tensors[0].n_bytes > 100 * 2**20
    assert oom.history
    assert oom.history_sites
    assert (tmp_path / "memory_snapshot.pickle").stat().st_size > 0
    assert "post-mortem" in (tmp_path / "out_of_memory.txt").read_text()


def test_real_fragmentation_is_found() -> None:
    device = torch.device("cuda:0")
    torch.cuda.reset_peak_memory_stats(device)
    # Blocks of 64 MiB, every second one freed, then blocks that fit into none of the holes.
    blocks = [torch.empty(64 * 2**20, dtype=torch.uint8, device=device) for _ in range(32)]
    held = blocks[::2]
    del blocks
    larger = [torch.empty(96 * 2**20, dtype=torch.uint8, device=device) for _ in range(12)]
    allocator, _ = allocator_of(device)
    assert allocator is not None
    reading = allocator.read()
    assert held
    assert larger
    record = DeviceMemory(
        device="cuda:0",
        peak_allocated_bytes=reading.allocated,
        peak_reserved_bytes=reading.reserved,
        total_bytes=allocator.total_bytes,
        alloc_retries=reading.n_retries,
    )
    assert reading.reserved - reading.allocated >= 512 * 2**20
    run = Run(id="x", stage="fit", status="finished", started_at="", wall_s=1.0)
    session = Session(run=run, machine=Machine(os="", python=""), memory=Memory(devices=(record,)))
    outcome = next(o for o in diagnose(session).outcomes if o.code == "PD404")
    is_over = reading.reserved >= 1.5 * reading.allocated
    assert outcome.status == ("finding" if is_over else "passed")


def test_reading_does_not_wait_for_the_device() -> None:
    device = torch.device("cuda:0")
    allocator, _ = allocator_of(device)
    assert allocator is not None
    done = torch.cuda.Event()
    torch.cuda._sleep(2_000_000_000)
    done.record()
    allocator.read()
    assert not done.query()
    torch.cuda.synchronize()
