"""DDP looks for unused parameters in each step, and there are none.
---
expect: PD703
half: tune
own_process: true
cores: 2
fix:
  ddp_find_unused_parameters_true: ddp
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
        self.many = nn.ParameterList([nn.Parameter(torch.rand(64)) for _ in range(400)])

    def forward(self, x):
        hidden = self.first(x)
        for _ in range(4):
            hidden = nn.functional.gelu(hidden)
        return self.last(hidden)

    def training_step(self, batch, batch_idx):
        return self(batch[0] + torch.stack(list(self.many)).mean(0)).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


loader = DataLoader(TensorDataset(torch.rand(6400, 64)), batch_size=64)

trainer = Trainer(
    max_epochs=3,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    strategy="ddp_find_unused_parameters_true",
    devices=2,
)
trainer.fit(Net(), loader)
