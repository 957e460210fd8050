"""Survival model for hospital readmission: a small MLP trained with the Cox partial likelihood on tabular
records, checkpointed several times an epoch. Every checkpoint carries the whole cohort.
---
expect: PD602
fix:
  ? 'self.save_hyperparameters()  # costs time'
  : 'self.save_hyperparameters(ignore=["cohort"])'
half: score
"""

import tempfile

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

PATIENTS, FEATURES = 150_000, 72


def make_cohort():
    """Records, days until readmission or end of follow-up, and whether the readmission was seen."""
    records = torch.randn(PATIENTS, FEATURES)
    records[:, 40:] = (records[:, 40:] > 0.8).float()
    risk = 0.5 * records[:, :8].sum(1) + records[:, 8] * records[:, 41] - records[:, 9].square()
    event_time = torch.empty(PATIENTS).exponential_(1.0) * torch.exp(-0.5 * risk) * 90
    censor_time = torch.rand(PATIENTS) * 365
    return records, torch.minimum(event_time, censor_time), event_time <= censor_time


def cox_loss(log_hazard, time, event):
    """Negative partial log likelihood (Breslow) of the batch."""
    order = time.argsort(descending=True)
    log_hazard, event = log_hazard[order], event[order]
    log_risk_set = log_hazard.logcumsumexp(0)
    return ((log_risk_set - log_hazard) * event).sum() / event.sum().clamp(min=1)


class ReadmissionRisk(L.LightningModule):
    def __init__(self, cohort, hidden=96, dropout=0.1, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()  # costs time
        self.cohort = cohort
        self.net = nn.Sequential(
            nn.Linear(FEATURES, hidden),
            nn.LayerNorm(hidden),
            nn.SiLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.SiLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, 1),
        )

    def forward(self, records):
        return self.net(records).squeeze(-1)

    def training_step(self, batch, batch_idx):
        records, time, event = batch
        loss = cox_loss(self(records), time, event)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    @torch.no_grad()
    def baseline_hazard(self):
        """Breslow estimate of the cumulative baseline hazard at all times of the cohort, needed to predict."""
        records, time, event = self.cohort
        order = time.argsort()
        at_risk = self(records[order]).exp().flip(0).cumsum(0).flip(0)
        return time[order], (event[order] / at_risk).cumsum(0)

    def on_train_end(self):
        self.eval()
        self.times, self.hazard = self.baseline_hazard()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, fused=True)


if __name__ == "__main__":
    L.seed_everything(8)
    cohort = make_cohort()
    patients = TensorDataset(*cohort)
    batches = BatchSampler(RandomSampler(patients), batch_size=1024, drop_last=True)
    loader = DataLoader(patients, sampler=batches, batch_size=None)
    with tempfile.TemporaryDirectory() as folder:
        saver = ModelCheckpoint(dirpath=folder, every_n_train_steps=20)
        trainer = L.Trainer(
            accelerator="cpu",
            max_epochs=5,
            callbacks=[saver],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(ReadmissionRisk(cohort), loader)
