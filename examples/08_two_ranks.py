"""Two ranks with DDP, one of them slower: PerfDoctor names it.

The second rank's data is 20 ms late. Run it: ``python examples/08_two_ranks.py`` (about fifteen seconds on a CPU).
"""

import time

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from lightning_perf import PerfDoctor


class Stream(IterableDataset):
    """Batches that are late on one rank."""

    def __iter__(self):
        is_slow = torch.distributed.is_initialized() and torch.distributed.get_rank() == 1
        for _ in range(40):
            if is_slow:
                time.sleep(0.02)
            yield torch.rand(64, 64)


class Model(LightningModule):
    """Two layers."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 1))

    def training_step(self, batch, batch_idx):
        return self.layers(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main():
    """Train with two processes on this machine."""
    doctor = PerfDoctor(reports=())
    trainer = Trainer(
        max_epochs=3,
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        callbacks=[doctor],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Model(), DataLoader(Stream(), batch_size=None))
    if trainer.is_global_zero:
        print("Verdict:", doctor.session.verdict.code, doctor.session.verdict.text)


if __name__ == "__main__":
    main()
