"""A network estimates the relative hazard of hospital patients with the Cox partial likelihood, stopped early on the
concordance of a validation cohort.
---
half: score
"""

import tempfile

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

FEATURES = 96


def cox_loss(risk, time, event):
    """Negative partial log-likelihood (Breslow) over the batch's risk sets."""
    order = time.argsort(descending=True)
    risk, event = risk[order], event[order]
    return -((risk - risk.logcumsumexp(dim=0)) * event).sum() / event.sum().clamp(min=1)


def concordance(risk, time, event):
    """Share of comparable pairs that the risk orders correctly."""
    comparable = (time[:, None] < time[None, :]) & event.bool()[:, None]
    correct = (risk[:, None] > risk[None, :]) & comparable
    return correct.sum() / comparable.sum()


class CoxNet(L.LightningModule):
    def __init__(self, hidden=512, lr=0.03):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(FEATURES, hidden),
            nn.SELU(),
            nn.Linear(hidden, hidden),
            nn.SELU(),
            nn.Linear(hidden, hidden),
            nn.SELU(),
            nn.Linear(hidden, 1, bias=False),
        )
        self.lr = lr
        self.validated = []

    def forward(self, x):
        return self.net(x).squeeze(1)

    def training_step(self, batch, batch_idx):
        x, time, event = batch
        loss = cox_loss(self(x), time, event)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, time, event = batch
        self.validated.append((self(x), time, event))

    def on_validation_epoch_end(self):
        risk, time, event = (torch.cat(column) for column in zip(*self.validated, strict=True))
        self.validated.clear()
        self.log("val_loss", cox_loss(risk, time, event))
        self.log("val_concordance", concordance(risk, time, event))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9, weight_decay=1e-4, fused=True)


def make_patients(n, seed):
    effect = torch.randn(FEATURES, generator=torch.Generator().manual_seed(5)) / FEATURES**0.5
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, FEATURES, generator=generator)
    hazard = torch.exp(1.5 * torch.tanh(x @ effect))
    death = -torch.rand(n, generator=generator).clamp(min=1e-6).log() / hazard
    censoring = 2.0 * torch.rand(n, generator=generator)
    return TensorDataset(x, torch.minimum(death, censoring), (death <= censoring).float())


def make_loader(dataset, batch_size, shuffle):
    order = RandomSampler(dataset) if shuffle else SequentialSampler(dataset)
    return DataLoader(dataset, sampler=BatchSampler(order, batch_size, drop_last=shuffle), batch_size=None)


if __name__ == "__main__":
    L.seed_everything(13)
    folder = tempfile.mkdtemp()
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=4,
        logger=False,
        callbacks=[
            ModelCheckpoint(folder, monitor="val_concordance", mode="max", save_weights_only=True),
            EarlyStopping("val_concordance", mode="max", patience=3),
        ],
        enable_progress_bar=False,
    )
    trainer.fit(
        CoxNet(),
        make_loader(make_patients(35_840, seed=0), batch_size=512, shuffle=True),
        make_loader(make_patients(1_500, seed=1), batch_size=500, shuffle=False),
    )
