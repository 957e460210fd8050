"""The Trainer still has the profiler of an earlier search for a slow line.
---
expect: PD608
half: score
fix:
  profiler="advanced",: ""
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(12)))

    def training_step(self, batch, batch_idx):
        return self.layers(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


data = TensorDataset(torch.randn(6400, 16))
loader = DataLoader(data, sampler=BatchSampler(RandomSampler(data), 16, drop_last=True), batch_size=None)

trainer = Trainer(
    max_epochs=3,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    profiler="advanced",
)
trainer.fit(Net(), loader)
