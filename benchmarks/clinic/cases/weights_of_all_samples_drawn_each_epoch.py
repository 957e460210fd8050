"""A sampler draws forty batches an epoch, by the weights of two million rows that it copies and orders first.
---
expect:
- PD114
- PD603
half: tune
fix:
  keeps_order = False: keeps_order = True
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset


class ByWeight(Sampler):
    keeps_order = False

    def __init__(self, weights):
        self.weights = weights
        self.order = None

    def __len__(self):
        return 40

    def __iter__(self):
        if self.order is None or not self.keeps_order:
            self.order = torch.argsort(self.weights * torch.rand(len(self.weights)))
        start = int(torch.randint(len(self.order) - 64 * 40, ()))
        yield from self.order[start : start + 64 * 40].view(40, 64)


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 2048), nn.Linear(2048, 1)

    def training_step(self, batch, batch_idx):
        hidden = self.first(batch[0])
        for _ in range(16):
            hidden = nn.functional.gelu(hidden)
        return self.last(hidden).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


data = TensorDataset(torch.rand(2_000_000, 16))
loader = DataLoader(data, sampler=ByWeight(torch.rand(2_000_000)), batch_size=None)

trainer = Trainer(
    max_epochs=7,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
