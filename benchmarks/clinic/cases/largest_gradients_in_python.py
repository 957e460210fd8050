"""on_before_optimizer_step finds the largest gradient of each parameter in a Python loop.
---
expect: [PD504, PD511]
half: tune
fix:
  self.named_parameters(): "[]"
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(128, 1024), nn.Linear(1024, 1)
        self.largest = {}

    def forward(self, x):
        hidden = self.first(x)
        for _ in range(8):
            hidden = nn.functional.gelu(hidden)
        return self.last(hidden)

    def training_step(self, batch, batch_idx):
        return self(batch[0]).square().mean()

    def on_before_optimizer_step(self, optimizer):
        for name, parameter in self.named_parameters():
            values = parameter.grad.flatten().tolist()
            self.largest[name] = max(abs(value) for value in values)  # costs time

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
