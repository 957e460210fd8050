"""A network predicts 64 correlated biomarkers jointly with one learned residual covariance. The mistake: the likelihood
is built with the distribution's argument validation left on, which expands the covariance over the batch.
---
expect: PD336
fix:
  ? "        return MultivariateNormal(mean, covariance_matrix=self.covariance()).log_prob(y)\\n"
  : |2
            likelihood = MultivariateNormal(mean, covariance_matrix=self.covariance(), validate_args=False)
            return likelihood.log_prob(y)
half: tune
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import MultivariateNormal
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

FEATURES = 128
MARKERS = 64


class JointRegression(L.LightningModule):
    def __init__(self, hidden=512, lr=0.02):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(FEATURES, hidden),
            nn.GELU(),
            nn.Linear(hidden, hidden),
            nn.GELU(),
            nn.Linear(hidden, MARKERS),
        )
        self.lower = nn.Parameter(torch.zeros(MARKERS, MARKERS))
        self.log_diagonal = nn.Parameter(torch.full((MARKERS,), 0.5))
        self.lr = lr

    def covariance(self):
        factor = self.lower.tril(-1) + torch.diag(F.softplus(self.log_diagonal))
        return factor @ factor.T + 1e-3 * torch.eye(MARKERS, device=factor.device)

    def log_likelihood(self, x, y):
        mean = self.net(x)
        return MultivariateNormal(mean, covariance_matrix=self.covariance()).log_prob(y)

    def training_step(self, batch, batch_idx):
        loss = -self.log_likelihood(*batch).mean() / MARKERS
        self.log("train_nll", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        loss = -self.log_likelihood(*batch).mean() / MARKERS
        self.log("val_nll", loss, batch_size=len(batch[0]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)


def make_patients(n, seed):
    shared = torch.Generator().manual_seed(77)
    effect = torch.randn(FEATURES, MARKERS, generator=shared) / FEATURES**0.5
    loading = 0.6 * torch.randn(8, MARKERS, generator=shared)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, FEATURES, generator=generator)
    noise = torch.randn(n, 8, generator=generator) @ loading + 0.5 * torch.randn(n, MARKERS, generator=generator)
    return TensorDataset(x, torch.sin(x @ effect) + noise)


def make_loader(dataset, batch_size, shuffle):
    order = RandomSampler(dataset) if shuffle else SequentialSampler(dataset)
    return DataLoader(dataset, sampler=BatchSampler(order, batch_size, drop_last=shuffle), batch_size=None)


if __name__ == "__main__":
    L.seed_everything(17)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(
        JointRegression(),
        make_loader(make_patients(23_040, seed=0), batch_size=384, shuffle=True),
        make_loader(make_patients(1_536, seed=1), batch_size=384, shuffle=False),
    )
