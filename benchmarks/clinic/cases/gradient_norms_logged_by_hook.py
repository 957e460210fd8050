"""The module's hook logs the norm of each layer's gradient before each step of the optimizer.
---
expect:
- PD504
- PD502
half: score
fix:
  self.trainer.global_step % 1: self.trainer.global_step % 50
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import grad_norm
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(192, 192) for _ in range(24))

    def training_step(self, batch, batch_idx):
        hidden = batch[0]
        for layer in self.layers:
            hidden = hidden + 0.1 * nn.functional.gelu(layer(hidden))
        return hidden.square().mean()

    def on_before_optimizer_step(self, optimizer):
        if self.trainer.global_step % 1 == 0:
            self.log_dict(grad_norm(self, norm_type=2))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-5, fused=True)


data = TensorDataset(torch.rand(5120, 192))
batches = BatchSampler(RandomSampler(data), batch_size=128, drop_last=True)
loader = DataLoader(data, sampler=batches, batch_size=None)

trainer = Trainer(
    max_epochs=5,
    accelerator="cpu",
    logger=CSVLogger("."),
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
