"""The loader is made again in every epoch, and the data module parses its table of text each time.
---
expect: PD603
half: score
fix:
  'reload_dataloaders_every_n_epochs=1': 'reload_dataloaders_every_n_epochs=0'
"""

import csv
import io

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


def make_table():
    rows = np.random.default_rng(0).normal(size=(1800, 101)).round(4).tolist()
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()


class Readings(L.LightningDataModule):
    def __init__(self, table):
        super().__init__()
        self.table = table

    def train_dataloader(self):
        rows = [[float(cell) for cell in row] for row in csv.reader(io.StringIO(self.table))]  # costs time
        values = torch.tensor(rows)  # costs time
        data = TensorDataset(values[:, :-1], values[:, -1:])
        return DataLoader(data, sampler=BatchSampler(RandomSampler(data), 100, drop_last=True), batch_size=None)


class Regression(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(100, 400), nn.SiLU(), nn.Linear(400, 400), nn.SiLU(), nn.Linear(400, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    L.seed_everything(1)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=22,
        reload_dataloaders_every_n_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Regression(), datamodule=Readings(make_table()))
