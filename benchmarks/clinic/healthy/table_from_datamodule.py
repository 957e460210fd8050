"""A DataModule splits a table for a small network with batch normalization; gradients are clipped by Lightning.
---
half: score
"""

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset


class Table(LightningDataModule):
    def setup(self, stage):
        rows = torch.rand(12000, 24)
        self.columns = (rows - rows.mean(0)) / rows.std(0), (rows.sum(1) > 12).float()

    def loader(self, rows, sampler):
        data = TensorDataset(*(column[rows] for column in self.columns))
        return DataLoader(data, sampler=BatchSampler(sampler(data), 64, drop_last=True), batch_size=None)

    def train_dataloader(self):
        return self.loader(slice(0, 11000), RandomSampler)

    def val_dataloader(self):
        return self.loader(slice(11000, 12000), SequentialSampler)


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Sequential(nn.Linear(n_in, 48, bias=False), nn.BatchNorm1d(48), nn.SiLU()) for n_in in (24, 48, 48)),
            nn.Linear(48, 1),
        )

    def loss(self, batch):
        return nn.functional.binary_cross_entropy_with_logits(self.layers(batch[0]).squeeze(1), batch[1])

    def training_step(self, batch, batch_idx):
        return self.loss(batch)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


trainer = Trainer(
    max_epochs=4,
    accelerator="cpu",
    gradient_clip_val=1.0,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), datamodule=Table())
