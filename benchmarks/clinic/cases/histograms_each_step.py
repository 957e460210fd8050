"""The module's hook gives histograms of all weights to TensorBoard after each step.
---
expect:
- PD504
- PD505
half: score
fix:
  self.global_step % 1: self.global_step % 50
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(4))

    def training_step(self, batch, batch_idx):
        hidden = batch[0]
        for layer in self.layers:
            hidden = hidden + 0.1 * nn.functional.gelu(layer(hidden))
        return hidden.square().mean()

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if self.global_step % 1 == 0:
            for name, weight in self.named_parameters():
                self.logger.experiment.add_histogram(name, weight, self.global_step)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-5, fused=True)


data = TensorDataset(torch.rand(7680, 256))
batches = BatchSampler(RandomSampler(data), batch_size=256, drop_last=True)
loader = DataLoader(data, sampler=batches, batch_size=None)

trainer = Trainer(
    max_epochs=4,
    accelerator="cpu",
    logger=TensorBoardLogger("."),
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
