"""A torchmetrics accuracy, updated in each step and computed at the end of the epoch.
---
half: score
fast: true
"""

import torch
import torchmetrics
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 2048), nn.Linear(2048, 4)
        self.accuracy = torchmetrics.classification.MulticlassAccuracy(4, validate_args=False)

    def training_step(self, batch, batch_idx):
        x, y = batch
        hidden = self.first(x)
        for _ in range(20):
            hidden = nn.functional.gelu(hidden)
        logits = self.last(hidden)
        self.accuracy.update(logits, y)
        return nn.functional.cross_entropy(logits, y)

    def on_train_epoch_end(self):
        self.log("accuracy", self.accuracy.compute())
        self.accuracy.reset()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


data = TensorDataset(torch.rand(3200, 64), torch.randint(4, (3200,)))
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
