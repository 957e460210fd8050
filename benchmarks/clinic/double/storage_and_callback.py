"""Storage that answers slowly costs most of the time, a callback some of it.
---
expect: PD106
second: PD504
also:
  PD504: certain, whereas what faster storage leaves is not known
  PD101: workers overlap the waiting, in one line, and what they gain was probed
half: score
cores: 2
fix:
  time.sleep(0.002): pass
"""

import time

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


class Remote(Dataset):
    def __init__(self):
        self.samples = torch.rand(640, 400)

    def __len__(self):
        return len(self.samples)

    def read(self, index):
        time.sleep(0.002)  # the network
        return self.samples[index]

    def __getitem__(self, index):
        return self.read(index)


class Sender(Callback):
    def on_train_batch_end(self, *_):
        time.sleep(0.008)  # asks a server


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


loader = DataLoader(Remote(), batch_size=16, shuffle=True)

trainer = Trainer(
    max_epochs=4,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    callbacks=[Sender()],
)
trainer.fit(Net(), loader)
