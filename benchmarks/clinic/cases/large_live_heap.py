"""Each step makes many lists beside a large heap, and Python's collector visits all of it.
---
expect: PD508
half: tune
fix:
  "gc.collect()": "gc.freeze(), gc.set_threshold(1_000_000, 50, 100)"
"""

import gc

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

HEAP = [[n] for n in range(20_000)]


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
        boxes = [[n, batch_idx] for n in range(10_000)]
        return (self(batch[0]) - boxes[-1][0] / 10_000).square().mean()

    def on_train_start(self):
        gc.collect()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


data = TensorDataset(torch.rand(64 * 40, 64))
batches = BatchSampler(RandomSampler(data), batch_size=64, drop_last=True)
loader = DataLoader(data, sampler=batches, batch_size=None)

trainer = Trainer(
    max_epochs=4,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
