"""Wide tables with embedded categories, logged to CSV every fifty steps, best checkpoint kept.
---
half: score
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.embed, self.first, self.last = nn.Embedding(100, 8), nn.Linear(32 + 8 * 8, 1024), nn.Linear(1024, 1)

    def loss(self, batch):
        numbers, categories = batch
        hidden = self.first(torch.cat([numbers, self.embed(categories).flatten(1)], dim=1))
        for _ in range(12):
            hidden = nn.functional.silu(hidden)
        return self.last(hidden).square().mean()

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


def make_loader(n_batches):
    data = TensorDataset(torch.rand(128 * n_batches, 32), torch.randint(100, (128 * n_batches, 8)))
    return DataLoader(data, sampler=BatchSampler(RandomSampler(data), 128, drop_last=True), batch_size=None)


trainer = Trainer(
    max_epochs=3,
    accelerator="cpu",
    logger=CSVLogger("."),
    enable_progress_bar=False,
    callbacks=[ModelCheckpoint(monitor="val_loss")],
)
trainer.fit(Net(), make_loader(100), make_loader(10))
