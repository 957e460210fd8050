"""The progress bar shows ten metrics: collecting them at each step costs more than drawing them.
---
expect:
- PD502
- PD506
half: score
fix:
  self.log_dict({: "batch_idx % 50 or self.log_dict({"
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import TQDMProgressBar
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 512), nn.Linear(512, 1)

    def forward(self, x):
        hidden = self.first(x)
        for _ in range(4):
            hidden = nn.functional.gelu(hidden)
        return self.last(hidden)

    def training_step(self, batch, batch_idx):
        loss = self(batch[0]).square().mean()
        self.log_dict({f"metric_{index}": loss for index in range(10)}, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


data = TensorDataset(torch.rand(3200, 64))
batches = BatchSampler(RandomSampler(data), batch_size=64, drop_last=True)
loader = DataLoader(data, sampler=batches, batch_size=None)

trainer = Trainer(
    max_epochs=6,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=True,
    callbacks=[TQDMProgressBar()],
)
trainer.fit(Net(), loader)
