"""Trains a patch transformer that forecasts the next day of wind power from the last eight days of hourly weather data.
---
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

HISTORY, HORIZON, CHANNELS, PATCH = 192, 24, 4, 12


def make_series(hours, seed=0):
    gen = torch.Generator().manual_seed(seed)
    time = torch.arange(hours, dtype=torch.float32)
    season = torch.stack([torch.sin(6.2832 * time / p + i) for i, p in enumerate((24, 37, 168, 91))], dim=1)
    return season + 0.3 * torch.randn(hours, CHANNELS, generator=gen)


def make_windows(series, stride):
    windows = series.unfold(0, HISTORY + HORIZON, stride)
    past = windows[:, :, :HISTORY].contiguous()
    wind = windows[:, :2, HISTORY:].mean(dim=1)
    return past, torch.sigmoid(2 * wind)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Layer(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Forecaster(L.LightningModule):
    def __init__(self, width=128, depth=3, lr=5e-4, total_steps=240):
        super().__init__()
        self.save_hyperparameters()
        self.embed = nn.Linear(CHANNELS * PATCH, width)
        self.position = nn.Parameter(0.02 * torch.randn(HISTORY // PATCH, width))
        self.layers = nn.Sequential(*[Layer(width) for _ in range(depth)])
        self.head = nn.Linear(HISTORY // PATCH * width, HORIZON)

    def forward(self, past):
        patches = past.unfold(2, PATCH, PATCH).permute(0, 2, 1, 3).flatten(2)
        return self.head(self.layers(self.embed(patches) + self.position).flatten(1))

    def training_step(self, batch, batch_idx):
        past, power = batch
        loss = F.mse_loss(self(past), power)
        self.log("train_mse", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        past, power = batch
        self.log("val_mse", F.mse_loss(self(past), power), prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, fused=True)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.hparams.lr, self.hparams.total_steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


if __name__ == "__main__":
    L.seed_everything(0)
    series = make_series(9000)
    train = TensorDataset(*make_windows(series[:8000], stride=4))
    val = TensorDataset(*make_windows(series[8000:], stride=8))
    train_loader = DataLoader(train, batch_size=32, shuffle=True, drop_last=True)
    epochs = 4
    trainer = L.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=CSVLogger("lightning_logs"),
        callbacks=[ModelCheckpoint(monitor="val_mse"), LearningRateMonitor("epoch")],
    )
    model = Forecaster(total_steps=epochs * len(train_loader))
    trainer.fit(model, train_loader, DataLoader(val, batch_size=128))
