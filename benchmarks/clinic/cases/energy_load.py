"""A mixer network that forecasts the distribution of tomorrow's half-hourly electric load, whose likelihood treats
independent half-hours as a full multivariate normal distribution.
---
expect: [PD330, PD335]
fix:
  "from torch.distributions import MultivariateNormal": "from torch.distributions import Independent, Normal"
  "MultivariateNormal(mean, torch.diag_embed(std**2))": "Independent(Normal(mean, std), 1)"
half: score
"""

import lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import MultivariateNormal
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

HISTORY, DAY, FEATURES = 7, 48, 4


def households(days, seed):
    """A week of load, temperature, daylight and weekday of a district, and the load of the following day."""
    g = torch.Generator().manual_seed(seed)
    clock = torch.arange(DAY) / DAY * 6.2832
    season = torch.rand(days, 1, 1, generator=g) * 6.2832
    temperature = 10 - 9 * season.cos() - 4 * clock.cos() + torch.randn(days, HISTORY + 1, 1, generator=g) * 3
    daylight = (-clock.cos() - 0.6 * season.cos()).clamp(min=0).expand(days, HISTORY + 1, DAY)
    weekday = (torch.randint(0, 7, (days, 1, 1), generator=g) + torch.arange(HISTORY + 1)[:, None]) % 7
    work = (weekday < 5).float().expand(days, HISTORY + 1, DAY)
    load = 1 + 0.05 * (18 - temperature).clamp(min=0) + work * (0.4 - 0.5 * (2 * clock).cos()) - 0.3 * daylight
    load = load + torch.randn(load.shape, generator=g) * (0.05 + 0.1 * work)
    table = torch.stack([load, temperature / 10, daylight, work], -1)
    return TensorDataset(table[:, :HISTORY].reshape(days, HISTORY * DAY, FEATURES), load[:, HISTORY])


class Mixer(nn.Module):
    """One layer along time, one along features."""

    def __init__(self, steps, width):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.time = nn.Linear(steps, steps)
        self.features = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def forward(self, x):
        x = x + F.relu(self.time(self.norms[0](x).transpose(1, 2))).transpose(1, 2)
        return x + self.features(self.norms[1](x))


class LoadForecast(lightning.LightningModule):
    def __init__(self, width=24, patch=8):
        super().__init__()
        self.patch = patch
        self.embed = nn.Linear(FEATURES * patch, width)
        self.layers = nn.Sequential(*(Mixer(HISTORY * DAY // patch, width) for _ in range(3)))
        self.head = nn.Linear(HISTORY * DAY // patch * width, 2 * DAY)

    def forward(self, week):
        x = self.embed(week.reshape(len(week), -1, self.patch * FEATURES))
        mean, spread = self.head(self.layers(x).flatten(1)).chunk(2, 1)
        return mean, F.softplus(spread) + 1e-2

    def loss(self, week, load):
        mean, std = self(week)
        forecast = MultivariateNormal(mean, torch.diag_embed(std**2))  # costs time
        return -forecast.log_prob(load).mean()  # costs time

    def training_step(self, batch, batch_idx):
        return self.loss(*batch)

    def validation_step(self, batch, batch_idx):
        self.log("val_nll", self.loss(*batch), batch_size=len(batch[0]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    lightning.seed_everything(4, verbose=False)
    data, held_out = households(12_800, seed=1), households(512, seed=2)
    train = DataLoader(data, sampler=BatchSampler(RandomSampler(data), 128, drop_last=True), batch_size=None)
    valid = DataLoader(
        held_out, sampler=BatchSampler(SequentialSampler(held_out), 128, drop_last=False), batch_size=None
    )
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(LoadForecast(), train, valid)
