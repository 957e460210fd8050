"""A negative binomial network predicts the number of insurance claims per policy from a table. The Trainer is asked for
double precision, which the data (floats) and the loss do not need.
---
expect: PD315
half: score
fix:
  ? 'precision="64-true"'
  : 'precision="32-true"'
"""

import lightning as L
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

FEATURES = 40
REGIONS = 80
BATCH = 1024


def make_policies(count, seed):
    gen = torch.Generator().manual_seed(seed)
    numbers = torch.randn(count, FEATURES, generator=gen)
    region = torch.randint(REGIONS, (count,), generator=gen)
    exposure = 0.2 + 0.8 * torch.rand(count, generator=gen)
    fixed = torch.Generator().manual_seed(99)
    effect = torch.randn(FEATURES, generator=fixed) * 0.12
    region_effect = torch.randn(REGIONS, generator=fixed) * 0.3
    log_rate = numbers @ effect + region_effect[region] + 0.2 * numbers[:, 0] * numbers[:, 3]
    shape = torch.full((count,), 2.0)
    rate = torch.exp(log_rate) * exposure * torch._standard_gamma(shape, generator=gen) / shape
    return TensorDataset(numbers, region, exposure, torch.poisson(rate, generator=gen))


def batches(dataset, shuffle):
    order = RandomSampler(dataset) if shuffle else SequentialSampler(dataset)
    return DataLoader(dataset, sampler=BatchSampler(order, BATCH, drop_last=shuffle), batch_size=None)


class ResidualBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def forward(self, x):
        return x + self.layers(self.norm(x))


class ClaimCounts(L.LightningModule):
    def __init__(self, width=104, blocks=3, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.region = nn.Embedding(REGIONS, 16)
        self.stem = nn.Linear(FEATURES + 16, width)
        self.blocks = nn.Sequential(*[ResidualBlock(width) for _ in range(blocks)])
        self.log_rate = nn.Linear(width, 1)
        self.log_dispersion = nn.Parameter(torch.zeros(()))

    def forward(self, numbers, region, exposure):
        hidden = self.blocks(self.stem(torch.cat([numbers, self.region(region)], dim=1)))
        return self.log_rate(hidden).squeeze(-1) + exposure.log()

    def likelihood(self, batch):
        """Mean negative log likelihood of the counts."""
        numbers, region, exposure, claims = batch
        log_mean = self(numbers, region, exposure)
        r = self.log_dispersion.exp()
        log_total = torch.logaddexp(log_mean, self.log_dispersion)
        ll = torch.lgamma(claims + r) - torch.lgamma(r) - torch.lgamma(claims + 1)
        ll = ll + r * (self.log_dispersion - log_total) + claims * (log_mean - log_total)
        return -ll.mean()

    def training_step(self, batch, batch_idx):
        loss = self.likelihood(batch)
        self.log("train_nll", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_nll", self.likelihood(batch), batch_size=len(batch[0]))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=1e-4)


if __name__ == "__main__":
    L.seed_everything(21)
    train_loader = batches(make_policies(60_000, 1), shuffle=True)
    val_loader = batches(make_policies(6_000, 2), shuffle=False)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=4,
        precision="64-true",
        gradient_clip_val=1.0,
        log_every_n_steps=25,
    )
    trainer.fit(ClaimCounts(), train_loader, val_loader)
    print("validation nll", float(trainer.callback_metrics["val_nll"]))
