"""Trains a deep Cox model of patients' survival times, with censoring, on a table of clinical measurements.
---
half: score
"""

import lightning as L
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

MEASUREMENTS = 96


def make_patients(count, seed):
    generator = torch.Generator().manual_seed(seed)
    measurements = torch.randn(count, MEASUREMENTS, generator=generator)
    risk = measurements[:, 0] - 0.7 * measurements[:, 1] * measurements[:, 2] + 0.5 * measurements[:, 3].abs()
    survival = torch.empty(count).exponential_(generator=generator) * torch.exp(-risk)
    censoring = torch.empty(count).exponential_(generator=generator) * 2
    return TensorDataset(measurements, torch.minimum(survival, censoring), (survival <= censoring).float())


def loader(patients, batch_size, shuffle):
    sampler = RandomSampler(patients) if shuffle else SequentialSampler(patients)
    return DataLoader(patients, sampler=BatchSampler(sampler, batch_size, drop_last=shuffle), batch_size=None)


def cox_loss(risk, time, died):
    order = torch.argsort(time, descending=True)
    risk, died = risk[order], died[order]
    return -((risk - torch.logcumsumexp(risk, 0)) * died).sum() / died.sum().clamp_min(1)


def concordance(risk, time, died):
    comparable = (time[:, None] < time[None]) & (died[:, None] > 0)
    right = (risk[:, None] > risk[None]) & comparable
    return right.sum() / comparable.sum().clamp_min(1)


class DeepCox(L.LightningModule):
    def __init__(self, width=384):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(MEASUREMENTS, width),
            nn.ReLU(),
            nn.BatchNorm1d(width),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 1),
        )

    def forward(self, measurements):
        return self.net(measurements).squeeze(1)

    def training_step(self, batch, batch_idx):
        measurements, time, died = batch
        loss = cox_loss(self(measurements), time, died)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        measurements, time, died = batch
        risk = self(measurements)
        self.log("val_loss", cox_loss(risk, time, died), batch_size=len(time))
        self.log("val_concordance", concordance(risk, time, died), batch_size=len(time), prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.trainer.max_epochs)
        return [optimizer], [scheduler]


def main():
    L.seed_everything(29)
    train, val = make_patients(60_000, 0), make_patients(1024, 1)
    trainer = L.Trainer(accelerator="cpu", max_epochs=4)
    trainer.fit(DeepCox(), loader(train, 512, True), loader(val, 1024, False))


if __name__ == "__main__":
    main()
