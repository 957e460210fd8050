"""A deep Cox model is trained on the follow-up times of synthetic patients. The partial likelihood is computed with an
explicit patients-by-patients risk-set matrix per batch, although sorting by time and a running sum give the same.
---
expect: PD326
half: tune
fix:
  ? |2-
            at_risk = times.unsqueeze(0) >= times.unsqueeze(1)
            scores = hazard.unsqueeze(0).expand(len(times), -1).masked_fill(~at_risk, float("-inf"))  # costs time
            log_risk = torch.logsumexp(scores, dim=1)  # costs time
            return -((hazard - log_risk) * observed).sum() / observed.sum().clamp(min=1)
  : |2-
            order = times.argsort(descending=True)
            hazard, observed = hazard[order], observed[order]
            log_risk = torch.logcumsumexp(hazard, dim=0)
            return -((hazard - log_risk) * observed).sum() / observed.sum().clamp(min=1)
"""

import lightning as L
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

PATIENTS = 46_500
COVARIATES = 48
BATCH = 1536


def make_patients(count, seed):
    gen = torch.Generator().manual_seed(seed)
    covariates = torch.randn(count, COVARIATES, generator=gen)
    effect = torch.randn(COVARIATES, generator=torch.Generator().manual_seed(7)) * 0.25
    log_hazard = covariates @ effect + 0.4 * covariates[:, 0] * covariates[:, 1]
    event_time = -torch.log(torch.rand(count, generator=gen)) * torch.exp(-log_hazard)
    censor_time = -torch.log(torch.rand(count, generator=gen)) * 2.0
    times = torch.minimum(event_time, censor_time)
    observed = (event_time <= censor_time).float()
    return TensorDataset(covariates, times, observed)


def batches(dataset, shuffle):
    order = RandomSampler(dataset) if shuffle else SequentialSampler(dataset)
    return DataLoader(dataset, sampler=BatchSampler(order, BATCH, drop_last=shuffle), batch_size=None)


class CoxLoss(nn.Module):
    """Negative log partial likelihood (times have no ties)."""

    def forward(self, hazard, times, observed):
        at_risk = times.unsqueeze(0) >= times.unsqueeze(1)
        scores = hazard.unsqueeze(0).expand(len(times), -1).masked_fill(~at_risk, float("-inf"))  # costs time
        log_risk = torch.logsumexp(scores, dim=1)  # costs time
        return -((hazard - log_risk) * observed).sum() / observed.sum().clamp(min=1)


class DeepSurv(L.LightningModule):
    def __init__(self, hidden=192, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Linear(COVARIATES, hidden),
            nn.SELU(),
            nn.AlphaDropout(0.1),
            nn.Linear(hidden, hidden),
            nn.SELU(),
            nn.Linear(hidden, 1, bias=False),
        )
        self.criterion = CoxLoss()

    def forward(self, covariates):
        return self.net(covariates).squeeze(-1)

    def training_step(self, batch, batch_idx):
        covariates, times, observed = batch
        loss = self.criterion(self(covariates), times, observed)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        covariates, times, observed = batch
        self.log("val_loss", self.criterion(self(covariates), times, observed), batch_size=len(times))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=1e-4)


if __name__ == "__main__":
    L.seed_everything(11)
    train_loader = batches(make_patients(PATIENTS, seed=1), shuffle=True)
    val_loader = batches(make_patients(2 * BATCH, seed=2), shuffle=False)
    trainer = L.Trainer(accelerator="cpu", max_epochs=6, log_every_n_steps=25)
    trainer.fit(DeepSurv(), train_loader, val_loader)
    print("validation loss", float(trainer.callback_metrics["val_loss"]))
