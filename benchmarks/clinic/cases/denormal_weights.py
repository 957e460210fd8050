"""Weights have decayed to numbers too small for a normal float.
---
expect: PD319
half: score
with:
- flush-denormal
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(512, 512)
        with torch.no_grad():
            self.layer.weight.mul_(1e-38)
            self.layer.bias.zero_()

    def training_step(self, batch, batch_idx):
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-30, fused=True)


data = TensorDataset(torch.rand(5120, 512))
batches = BatchSampler(RandomSampler(data), batch_size=128, drop_last=True)
loader = DataLoader(data, sampler=batches, batch_size=None)

trainer = Trainer(
    max_epochs=5,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
