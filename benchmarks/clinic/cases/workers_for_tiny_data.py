"""Two workers for a table in memory of which a batch takes microseconds.
---
expect: PD103
half: tune
cores: 2
fix:
  num_workers=2, persistent_workers=True: num_workers=0
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 512), nn.Linear(512, 1)

    def forward(self, x):
        hidden = self.first(x)
        for _ in range(2):
            hidden = nn.functional.gelu(hidden)
        return self.last(hidden)

    def training_step(self, batch, batch_idx):
        return self(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


data = TensorDataset(torch.rand(9600, 64))
loader = DataLoader(data, batch_size=32, shuffle=True, num_workers=2, persistent_workers=True)

trainer = Trainer(
    max_epochs=4,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
