"""Batches put together number by number cost most, a checkpoint after every tenth step some.
---
expect: PD108
second: PD602
also:
  PD602: certain, whereas what a faster collate function leaves is not known
half: tune
fix:
  collate_fn=by_number: collate_fn=torch.stack
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader


def by_number(rows):
    return torch.tensor([[float(number) for number in row] for row in rows])


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(256, 1024), nn.Linear(1024, 1)
        self.register_buffer("table", torch.rand(4_000_000))

    def forward(self, x):
        hidden = self.first(x)
        for _ in range(16):
            hidden = nn.functional.gelu(hidden)
        return self.last(hidden)

    def training_step(self, batch, batch_idx):
        return self(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


loader = DataLoader(list(torch.rand(960, 256)), batch_size=32, shuffle=True, collate_fn=by_number)

trainer = Trainer(
    max_epochs=5,
    accelerator="cpu",
    logger=False,
    enable_progress_bar=False,
    callbacks=[ModelCheckpoint(every_n_train_steps=10)],
)
trainer.fit(Net(), loader)
