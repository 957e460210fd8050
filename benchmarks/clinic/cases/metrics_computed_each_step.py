"""Four metrics of torchmetrics are updated and computed in each step.
---
expect: PD509
half: tune
fix:
  self.metrics(told, classes): self.metrics.update(told, classes)
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
from torchmetrics import MetricCollection
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassCalibrationError,
    MulticlassF1Score,
)


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 1024), nn.Linear(1024, 1)
        self.metrics = MetricCollection(
            [
                MulticlassAccuracy(10),
                MulticlassF1Score(10),
                MulticlassAUROC(10, thresholds=50),
                MulticlassCalibrationError(10),
            ]
        )

    def forward(self, x):
        hidden = self.first(x)
        for _ in range(8):
            hidden = nn.functional.gelu(hidden)
        return self.last(hidden)

    def training_step(self, batch, batch_idx):
        told = self(batch[0]) * torch.arange(10.0)
        classes = (batch[0][:, 0] * 10).long()
        self.metrics(told, classes)  # costs time
        return nn.functional.cross_entropy(told, classes)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


data = TensorDataset(torch.rand(64 * 60, 64))
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
