"""A callback moves the averages of all items, kept in a dictionary, before gradients are zeroed.
---
expect: [PD504, PD511]
half: score
fix:
  "in self.averages.items()": "in ()"
"""

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class Averages(Callback):
    def __init__(self):
        self.averages = {f"item {n}": 0.5 for n in range(80_000)}

    def on_before_zero_grad(self, trainer, pl_module, optimizer):
        for item, average in self.averages.items():  # costs time
            self.averages[item] = 0.99 * average + 0.01  # costs time


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 1024), nn.Linear(1024, 1)

    def forward(self, x):
        hidden = self.first(x)
        for _ in range(8):
            hidden = nn.functional.gelu(hidden)
        return self.last(hidden)

    def training_step(self, batch, batch_idx):
        return self(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


data = TensorDataset(torch.rand(64 * 60, 64))
batches = BatchSampler(RandomSampler(data), batch_size=64, drop_last=True)
loader = DataLoader(data, sampler=batches, batch_size=None)

trainer = Trainer(
    max_epochs=4,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    callbacks=[Averages()],
)
trainer.fit(Net(), loader)
