"""Mixed precision on a CPU without 16-bit products: oneDNN may use AVX2 only here, and emulates them.
---
expect: PD324
half: tune
needs: x86, where oneDNN reads this variable
fix:
  precision="bf16-mixed": precision="32-true"
"""

import os

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX2"  # read when oneDNN is first used


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 8))

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


data = TensorDataset(torch.rand(128 * 60, 64), torch.randint(8, (128 * 60,)))
loader = DataLoader(data, sampler=BatchSampler(RandomSampler(data), 128, drop_last=True), batch_size=None)

trainer = Trainer(
    max_epochs=4,
    accelerator="cpu",
    precision="bf16-mixed",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
