"""torch uses eight threads on two cores.
---
expect: PD803
half: score
cores: 2
fix:
  torch.set_num_threads(8): torch.set_num_threads(2)
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

torch.set_num_threads(8)


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 1024), nn.Linear(1024, 1)

    def forward(self, x):
        hidden = self.first(x)
        for _ in range(16):
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
    max_epochs=4,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
