"""configure_gradient_clipping adds up the squares of all gradients, number by number.
---
expect: [PD507, PD504, PD511]
half: tune
fix:
  "squares = self.added_up()": "squares = sum(float(each.grad.square().sum()) for each in self.parameters())"
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(128, 1024), nn.Linear(1024, 1)

    def forward(self, x):
        hidden = self.first(x)
        for _ in range(8):
            hidden = nn.functional.gelu(hidden)
        return self.last(hidden)

    def training_step(self, batch, batch_idx):
        return self(batch[0]).square().mean()

    def added_up(self):
        squares = 0.0
        for parameter in self.parameters():
            for value in parameter.grad.flatten().tolist():  # costs time
                squares += value * value  # costs time
        return squares

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        squares = self.added_up()
        scale = min(1.0, 1.0 / (squares**0.5 + 1e-6))
        for parameter in self.parameters():
            parameter.grad.mul_(scale)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


data = TensorDataset(torch.rand(64 * 60, 128))
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
