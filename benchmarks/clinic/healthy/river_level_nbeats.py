"""Trains a residual stack of fully connected blocks that forecasts river levels from the last days.
---
half: score
"""

import tempfile

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, Dataset

PAST, FUTURE = 144, 24


def make_levels(gauges=24, hours=6000):
    gen = torch.Generator().manual_seed(8)
    t = torch.arange(hours).float()
    phase = torch.rand(gauges, 2, generator=gen) * 6.28
    season = torch.sin(t * 6.28 / 2000 + phase[:, :1]) + 0.3 * torch.sin(t * 6.28 / 24 + phase[:, 1:])
    rain = (torch.rand(gauges, hours, generator=gen) < 0.01).float() * torch.rand(gauges, hours, generator=gen)
    kernel = torch.exp(-torch.arange(96).float() / 24).flip(0)[None, None]
    runoff = nn.functional.conv1d(nn.functional.pad(rain[:, None], (95, 0)), kernel)[:, 0]
    return season + 2 * runoff + 0.03 * torch.randn(gauges, hours, generator=gen)


class LevelWindows(Dataset):
    """Windows of the series; a whole batch is gathered by one indexing."""

    def __init__(self, levels, stride):
        self.windows = levels.unfold(1, PAST + FUTURE, stride).reshape(-1, PAST + FUTURE).contiguous()

    def __len__(self):
        return len(self.windows)

    def __getitems__(self, indices):
        batch = self.windows[torch.as_tensor(indices)]
        return batch[:, :PAST], batch[:, PAST:]


def as_is(batch):
    return batch


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(PAST, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.back, self.ahead = nn.Linear(width, PAST), nn.Linear(width, FUTURE)

    def forward(self, x):
        h = self.body(x)
        return x - self.back(h), self.ahead(h)


class LevelForecaster(L.LightningModule):
    def __init__(self, blocks=4, width=384, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))

    def forward(self, past):
        level = past[:, -1:]
        rest, forecast = past - level, level
        for block in self.blocks:
            rest, ahead = block(rest)
            forecast = forecast + ahead
        return forecast

    def training_step(self, batch, batch_idx):
        past, future = batch
        loss = nn.functional.smooth_l1_loss(self(past), future)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        past, future = batch
        self.log("val_mae", (self(past) - future).abs().mean(), prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, fused=True)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=self.trainer.max_epochs)
        return [optimizer], [schedule]


if __name__ == "__main__":
    L.seed_everything(8)
    levels = make_levels()
    train = DataLoader(LevelWindows(levels[:, :5200], 12), batch_size=256, shuffle=True, collate_fn=as_is)
    val = DataLoader(LevelWindows(levels[:, 5200:], 24), batch_size=256, collate_fn=as_is)
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            max_epochs=5,
            accelerator="cpu",
            logger=CSVLogger(folder),
            callbacks=[ModelCheckpoint(dirpath=folder, monitor="val_mae", save_top_k=1)],
        )
        trainer.fit(LevelForecaster(), train, val)
