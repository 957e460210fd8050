"""Each sample is stored at the highest compression level and is decompressed, with its neighbors, in C code.
---
expect: PD107
half: score
fix:
  plain = self.unpack(): plain = self.plain
"""

import zlib

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Packed(Dataset):
    def __init__(self):
        noise = np.random.default_rng(0).integers(0, 8, 400 * 64, dtype=np.uint8)
        self.packed = zlib.compress(noise.tobytes() * 4, 9)
        self.plain = noise.tobytes()

    def __len__(self):
        return 640

    def unpack(self):
        return zlib.decompress(self.packed)  # costs time

    def __getitem__(self, index):
        plain = self.unpack()
        return torch.frombuffer(bytearray(plain[:400]), dtype=torch.uint8) / 255


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(400, 1024), nn.Linear(1024, 1)

    def forward(self, x):
        hidden = self.first(x)
        for _ in range(16):
            hidden = nn.functional.gelu(hidden)
        return self.last(hidden)

    def training_step(self, batch, batch_idx):
        return self(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


loader = DataLoader(Packed(), batch_size=16, shuffle=True)

trainer = Trainer(
    max_epochs=5,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
