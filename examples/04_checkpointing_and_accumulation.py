"""Fit a larger batch: see what uses memory, and two ways to use less.

``memory_breakdown`` reports the memory that training a model needs. If activations use most of it, activation
checkpointing keeps only the inputs of repeated blocks and computes the rest twice; gradient accumulation trains with
small batches as with a large one. Run it: ``python examples/04_checkpointing_and_accumulation.py`` (a few seconds on a
CPU).
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from lightning_perf import PerfDoctor, memory_breakdown

BATCH_SIZE = 128


class Deep(LightningModule):
    """Eight equal blocks."""

    def __init__(self, is_checkpointed=False):
        super().__init__()
        self.is_checkpointed = is_checkpointed
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(256), nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)) for _ in range(8)
        )

    def forward(self, x):
        for block in self.blocks:
            x = x + (checkpoint(block, x, use_reentrant=False) if self.is_checkpointed else block(x))
        return x

    def training_step(self, batch, batch_idx):
        return self(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-4, fused=True)


def activations(model, batch_size):
    """Return the bytes that one step saves for its backward pass."""
    breakdown = memory_breakdown(model, model.configure_optimizers(), torch.rand(batch_size, 256))
    print(breakdown)
    return breakdown.record.activations_bytes


def accumulate(n):
    """Train with the same number of samples per optimizer step, in ``n`` batches."""
    doctor = PerfDoctor(reports=())
    trainer = Trainer(
        max_epochs=2,
        accelerator="cpu",
        callbacks=[doctor],
        accumulate_grad_batches=n,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Deep(), DataLoader(TensorDataset(torch.rand(BATCH_SIZE * 20, 256)), batch_size=BATCH_SIZE // n))
    return doctor.session


def main():
    """Print memory and speed of both."""
    whole = activations(Deep(), BATCH_SIZE)
    kept = activations(Deep(is_checkpointed=True), BATCH_SIZE)
    part = activations(Deep(), BATCH_SIZE // 4)
    for what, n_bytes in {"whole": whole, "checkpointed": kept, "in four parts": part}.items():
        print(f"Activations {what}: {n_bytes / 2**20:.1f} MiB")
    session = accumulate(4)
    print(f"{session.run.n_steps} batches made {session.run.n_optimizer_steps} steps of {BATCH_SIZE} samples")
    return whole, kept, part, session


if __name__ == "__main__":
    main()
