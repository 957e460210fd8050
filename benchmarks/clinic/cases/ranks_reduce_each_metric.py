"""Ten metrics are reduced over the ranks in each step.
---
expect: PD705
half: tune
own_process: true
cores: 2
fix:
  on_step=True, sync_dist=True: on_step=False, on_epoch=True, sync_dist=True
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)


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
        loss = self(batch[0]).square().mean()
        for index in range(10):
            self.log(f"metric_{index}", loss * index, on_step=True, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


loader = DataLoader(TensorDataset(torch.rand(6400, 64)), batch_size=64)

trainer = Trainer(
    max_epochs=3,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    strategy="ddp",
    devices=2,
)
trainer.fit(Net(), loader)
