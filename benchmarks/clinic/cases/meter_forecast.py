"""Global day-ahead forecaster for 120,000 electricity meters, with one learned embedding per meter.
The embedding table has dense gradients, so each step fills all rows with zeros, and Adagrad then updates all of them,
though the batch touches 256.
---
expect: PD322
fix:
  ? "self.meter = nn.Embedding(n_meters, dim)"
  : "self.meter = nn.Embedding(n_meters, dim, sparse=True)"
half: score
"""

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler

N_METERS, CONTEXT, HORIZON = 120_000, 168, 24


class MeterWindows(Dataset):
    """Hourly windows of many meters; an index list returns a whole batch."""

    def __init__(self, windows, seed):
        rng = np.random.default_rng(seed)
        self.meter = rng.integers(0, N_METERS, windows)
        start = rng.integers(0, 8760, windows)
        meta = np.random.default_rng(99)
        level, phase = meta.gamma(2.0, 0.5, N_METERS), meta.uniform(0, 24, N_METERS)
        weekly = meta.uniform(0, 0.5, N_METERS)
        hours = start[:, None] + np.arange(CONTEXT + HORIZON)
        m = self.meter[:, None]
        load = 1 + 0.6 * np.sin(2 * np.pi * (hours - phase[m]) / 24) + weekly[m] * (hours // 24 % 7 >= 5)
        load = level[m] * load * rng.gamma(20.0, 1 / 20.0, hours.shape)
        self.load = torch.from_numpy(np.log1p(load).astype(np.float32))
        self.calendar = torch.from_numpy(np.stack([hours[:, CONTEXT] % 24, hours[:, CONTEXT] // 24 % 7], 1))
        self.meter = torch.from_numpy(self.meter)

    def __len__(self):
        return len(self.meter)

    def __getitem__(self, idx):
        load = self.load[idx]
        return self.meter[idx], self.calendar[idx], load[:, :CONTEXT], load[:, CONTEXT:]


def batches(dataset, shuffle, batch_size=256):
    sampler = RandomSampler(dataset) if shuffle else SequentialSampler(dataset)
    return DataLoader(dataset, sampler=BatchSampler(sampler, batch_size, drop_last=shuffle), batch_size=None)


class Block(nn.Module):
    """N-BEATS style block with a backcast and a forecast head."""

    def __init__(self, cond, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(CONTEXT + cond, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
        )
        self.backcast, self.forecast = nn.Linear(width, CONTEXT), nn.Linear(width, HORIZON)

    def forward(self, x, cond):
        h = self.body(torch.cat([x, cond], 1))
        return x - self.backcast(h), self.forecast(h)


class MeterForecaster(L.LightningModule):
    def __init__(self, n_meters=N_METERS, dim=32, width=256, blocks=4):
        super().__init__()
        self.meter = nn.Embedding(n_meters, dim)
        self.hour, self.weekday = nn.Embedding(24, 8), nn.Embedding(7, 4)
        self.blocks = nn.ModuleList(Block(dim + 12, width) for _ in range(blocks))

    def forward(self, meter, calendar, x):
        mean = x.mean(1, keepdim=True)
        cond = torch.cat([self.meter(meter), self.hour(calendar[:, 0]), self.weekday(calendar[:, 1])], 1)
        x, total = x - mean, mean
        for block in self.blocks:
            x, forecast = block(x, cond)
            total = total + forecast
        return total

    def training_step(self, batch, batch_idx):
        *inputs, target = batch
        loss = (self(*inputs) - target).abs().mean()
        self.log("train_mae", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        *inputs, target = batch
        self.log("val_mae", (self(*inputs) - target).abs().mean(), batch_size=len(target))

    def configure_optimizers(self):
        return torch.optim.Adagrad(self.parameters(), lr=0.01)


if __name__ == "__main__":
    L.seed_everything(5)
    train = batches(MeterWindows(51_200, seed=1), shuffle=True)
    val = batches(MeterWindows(4_000, seed=2), shuffle=False)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(MeterForecaster(), train, val)
