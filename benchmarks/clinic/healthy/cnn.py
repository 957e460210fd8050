"""A convolutional network in bfloat16 with normalization and a validation round each epoch.
---
half: tune
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 32, 3, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64, 10),
        )

    def loss(self, batch):
        images, labels = batch
        return nn.functional.cross_entropy(self.layers(images), labels)

    def training_step(self, batch, batch_idx):
        return self.loss(batch)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9, fused=True)


def make_loader(n_batches):
    data = TensorDataset(torch.rand(16 * n_batches, 3, 32, 32), torch.randint(10, (16 * n_batches,)))
    return DataLoader(data, sampler=BatchSampler(RandomSampler(data), 16, drop_last=True), batch_size=None)


trainer = Trainer(
    max_epochs=4,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    precision="bf16-mixed",
)
trainer.fit(Net(), make_loader(40), make_loader(5))
