"""A hook of the DataModule reads the whole table of prices again for each batch.
---
expect: [PD511, PD504]
half: score
fix:
  "prices = self.read()": "prices = PRICES"
"""

import csv
import io
import random

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

TABLE = "item,price,weight\n" + "\n".join(f"{n},{random.random()},{random.random()}" for n in range(6000))
PRICES = torch.rand(6000)


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 1024), nn.Linear(1024, 1)

    def forward(self, x):
        hidden = self.first(x)
        for _ in range(8):
            hidden = nn.functional.gelu(hidden)
        return self.last(hidden)

    def training_step(self, batch, batch_idx):
        return self(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


class Data(LightningDataModule):
    def train_dataloader(self):
        data = TensorDataset(torch.rand(64 * 60, 64), torch.randint(6000, (64 * 60,)))
        return DataLoader(data, sampler=BatchSampler(RandomSampler(data), 64, drop_last=True), batch_size=None)

    def read(self):
        return torch.tensor([float(row["price"]) for row in csv.DictReader(io.StringIO(TABLE))])  # costs time

    def on_before_batch_transfer(self, batch, dataloader_idx):
        prices = self.read()
        features, items = batch
        return features * prices[items].unsqueeze(1)


trainer = Trainer(
    max_epochs=4,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), datamodule=Data())
