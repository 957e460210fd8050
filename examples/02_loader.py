"""Apply the recommended DataLoader arguments and measure the speedup.

Samples come from a disk with a latency of 2 ms. The first training has no workers; the second uses the arguments that
the first diagnosis recommends. Run it: ``python examples/02_loader.py`` (about ten seconds on a CPU).
"""

import time

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, Dataset

from lightning_perf import PerfDoctor


class Archive(Dataset):
    """320 samples on a slow disk."""

    def __len__(self):
        return 320

    def __getitem__(self, index):
        time.sleep(0.002)  # the disk
        return torch.full((256,), index / 320)


class Regressor(LightningModule):
    """A few milliseconds of elementwise operations per step."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(256, 2048), nn.Linear(2048, 1)

    def training_step(self, batch, batch_idx):
        hidden = self.first(batch)
        for _ in range(10):
            hidden = nn.functional.gelu(hidden)
        return self.last(hidden).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def train(**loader_args):
    """Train once and return the session."""
    doctor = PerfDoctor(reports=())
    trainer = Trainer(
        max_epochs=4,
        accelerator="cpu",
        callbacks=[doctor],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Regressor(), DataLoader(Archive(), batch_size=16, **loader_args))
    return doctor.session


def main():
    """Train twice and print both speeds."""
    before = train()
    print("Verdict:", before.verdict.text)
    arguments = before.loader_args()
    print("Recommended:", arguments)
    after = train(**arguments)
    old_ms, new_ms = (1e3 * session.steady.span_s / session.steady.n_steps for session in (before, after))
    print(f"A batch took {old_ms:.1f} ms, now {new_ms:.1f} ms: {old_ms / new_ms:.1f}x")
    return before, after


if __name__ == "__main__":
    main()
