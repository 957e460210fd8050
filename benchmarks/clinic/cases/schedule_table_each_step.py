"""The learning rate's schedule makes the table of all 40,000 planned steps in Python in each step, to read one entry.
---
expect: PD512
half: score
fix:
  'import lightning as L': |-
    import functools

    import lightning as L
  'def warmup_and_cosine(total_steps):': |-
    @functools.lru_cache
    def warmup_and_cosine(total_steps):
"""

import math

import lightning as L
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

TOTAL_STEPS = 40_000
WARMUP_STEPS = 500


def warmup_and_cosine(total_steps):
    rise = [step / WARMUP_STEPS for step in range(1, WARMUP_STEPS + 1)]
    n_falling = total_steps - WARMUP_STEPS
    return rise + [0.5 + 0.5 * math.cos(math.pi * step / n_falling) for step in range(n_falling)]  # costs time


class Scorer(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(300, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.huber_loss(self.net(x), y)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer,
            lambda step: warmup_and_cosine(TOTAL_STEPS)[step],  # costs time
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


if __name__ == "__main__":
    L.seed_everything(1)
    data = TensorDataset(torch.randn(4800, 300), torch.randn(4800, 1))
    loader = DataLoader(data, sampler=BatchSampler(RandomSampler(data), 64, drop_last=True), batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=5,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Scorer(), loader)
