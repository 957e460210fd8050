"""A network with embeddings of the categorical columns learns the number of insurance claims per policy by a negative
binomial likelihood with the exposure as offset.
---
half: score
"""

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset
from torchmetrics import MeanAbsoluteError

NUMBERS, LEVELS = 30, (12, 80, 6, 25, 300, 9)


def negative_binomial_loss(log_mean, log_shape, counts):
    shape = log_shape.exp()
    log_total = torch.logaddexp(log_mean, log_shape)
    likelihood = (
        torch.lgamma(counts + shape)
        - torch.lgamma(shape)
        - torch.lgamma(counts + 1)
        + shape * (log_shape - log_total)
        + counts * (log_mean - log_total)
    )
    return -likelihood.mean()


class ClaimModel(L.LightningModule):
    def __init__(self, embedding=16, width=384):
        super().__init__()
        offsets = torch.tensor([0, *LEVELS[:-1]]).cumsum(0)
        self.register_buffer("offsets", offsets)
        self.embedding = nn.Embedding(sum(LEVELS), embedding)  # one table for all columns
        self.net = nn.Sequential(
            nn.Linear(NUMBERS + embedding * len(LEVELS), width),
            nn.BatchNorm1d(width),
            nn.SiLU(),
            nn.Linear(width, width),
            nn.BatchNorm1d(width),
            nn.SiLU(),
            nn.Linear(width, 1),
        )
        self.log_shape = nn.Parameter(torch.zeros(()))
        self.val_error = MeanAbsoluteError()

    def forward(self, numbers, categories, exposure):
        embedded = self.embedding(categories + self.offsets).flatten(1)
        return self.net(torch.cat([numbers, embedded], dim=1)).squeeze(1) + exposure.log()

    def training_step(self, batch, batch_idx):
        numbers, categories, exposure, counts = batch
        loss = negative_binomial_loss(self(numbers, categories, exposure), self.log_shape, counts)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        numbers, categories, exposure, counts = batch
        log_mean = self(numbers, categories, exposure)
        self.val_error(log_mean.exp(), counts)
        self.log("val_loss", negative_binomial_loss(log_mean, self.log_shape, counts))
        self.log("val_error", self.val_error)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=4e-3, total_steps=self.trainer.estimated_stepping_batches
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def make_policies(count, generator):
    numbers = torch.randn(count, NUMBERS, generator=generator)
    categories = torch.stack([torch.randint(0, level, (count,), generator=generator) for level in LEVELS], dim=1)
    exposure = 0.1 + 0.9 * torch.rand(count, generator=generator)
    effect = 0.4 * numbers[:, :5].sum(dim=1) + 0.1 * (categories % 5 - 2).sum(dim=1) - 0.5
    rate = effect.clamp(max=2.5).exp() * (0.5 + torch.rand(count, generator=generator))
    return TensorDataset(numbers, categories, exposure, torch.poisson(rate * exposure, generator=generator))


def batches(dataset, size, shuffle=False):
    order = RandomSampler(dataset) if shuffle else SequentialSampler(dataset)
    return DataLoader(dataset, sampler=BatchSampler(order, size, drop_last=shuffle), batch_size=None)


if __name__ == "__main__":
    L.seed_everything(31)
    generator = torch.Generator().manual_seed(31)
    train, val = make_policies(51_200, generator), make_policies(5120, generator)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=5,
        logger=False,
        callbacks=[ModelCheckpoint(monitor="val_loss", save_top_k=1)],
    )
    trainer.fit(ClaimModel(), batches(train, 512, shuffle=True), batches(val, 1024))
