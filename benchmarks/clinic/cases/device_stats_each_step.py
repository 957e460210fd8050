"""Lightning's DeviceStatsMonitor asks for figures of the whole machine at every step, and each of them is logged.
---
expect:
- PD504
- PD502
half: score
fix:
  callbacks=[DeviceStatsMonitor(cpu_stats=True)]: callbacks=[]
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import DeviceStatsMonitor
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 2048), nn.Linear(2048, 1)

    def forward(self, x):
        hidden = self.first(x)
        for _ in range(8):
            hidden = nn.functional.gelu(hidden)
        return self.last(hidden)

    def training_step(self, batch, batch_idx):
        return self(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


data = TensorDataset(torch.rand(3200, 64))
batches = BatchSampler(RandomSampler(data), batch_size=64, drop_last=True)
loader = DataLoader(data, sampler=batches, batch_size=None)

trainer = Trainer(
    max_epochs=6,
    accelerator="cpu",
    logger=CSVLogger("logs"),
    log_every_n_steps=1,
    enable_checkpointing=False,
    enable_progress_bar=False,
    callbacks=[DeviceStatsMonitor(cpu_stats=True)],
)
trainer.fit(Net(), loader)
