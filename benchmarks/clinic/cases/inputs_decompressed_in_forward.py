"""forward of a layer decompresses its table each time.
---
expect: PD511
half: tune
fix:
  zlib.decompress(self.packed): self.unpacked
"""

import zlib

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.unpacked = (np.arange(3_000_000, dtype=np.float32) % 97).tobytes()
        self.packed = zlib.compress(self.unpacked)

    def forward(self, x):
        values = np.frombuffer(zlib.decompress(self.packed), np.float32)  # costs time
        return x + float(values[x.shape[0]])


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 1024), nn.Linear(1024, 1)
        self.table = Table()

    def forward(self, x):
        hidden = self.first(x)
        for _ in range(8):
            hidden = nn.functional.gelu(hidden)
        return self.last(hidden)

    def training_step(self, batch, batch_idx):
        return self(self.table(batch[0])).square().mean()

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
)
trainer.fit(Net(), loader)
