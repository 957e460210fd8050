"""A compiled function takes a Python number that changes with each step.
---
expect: PD311
half: tune
fix:
  f"step {self.global_step // 4}": '"step"'
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

torch._dynamo.config.recompile_limit = 64


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 1024)

    @torch.compile(backend="eager")
    def encode(self, x, epoch_name):
        for _ in range(10):
            x = nn.functional.gelu(x) if epoch_name else x
        return self.first(x)

    def training_step(self, batch, batch_idx):
        return self.encode(batch[0], f"step {self.global_step // 4}").square().mean()

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
