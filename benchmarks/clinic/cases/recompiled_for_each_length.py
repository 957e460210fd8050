"""A compiled function meets a new length in most steps, and is compiled again for each.
---
expect: PD311
half: tune
fix:
  dynamic=False: dynamic=True
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

torch._dynamo.config.recompile_limit = 64


class Lengths(IterableDataset):
    def __iter__(self):
        for step in range(120):
            yield torch.rand(64, 1024 + 8 * (step // 3))


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(64, 1))

    @torch.compile(backend="eager", dynamic=False)
    def encode(self, x):
        for _ in range(10):
            x = nn.functional.gelu(x * 1.1)
        return x

    def training_step(self, batch, batch_idx):
        return self.encode(batch * self.scale).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


loader = DataLoader(Lengths(), batch_size=None)

trainer = Trainer(
    max_epochs=1,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
