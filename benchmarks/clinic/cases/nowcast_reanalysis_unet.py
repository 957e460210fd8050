"""A small U-Net forecasts rain six hours ahead from two frames of a reanalysis cube that is held in memory.
The frames were stacked along a last axis, so every sample gathers its pixels one by one from all over the
cube.
---
expect: PD107
fix:
  ? 'return np.stack(frames, axis=-1)'
  : 'return np.stack(frames)'
  ? 'return self.cube.shape[-1] - self.HISTORY - self.LEAD'
  : 'return self.cube.shape[0] - self.HISTORY - self.LEAD'
  ? 'past = [self.cube[..., index + k] for k in range(self.HISTORY)]'
  : 'past = [self.cube[index + k] for k in range(self.HISTORY)]'
  ? 'rain = self.cube[0, :, :, index + self.HISTORY + self.LEAD - 1]'
  : 'rain = self.cube[index + self.HISTORY + self.LEAD - 1, 0]'
half: score
"""

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

SIDE = 64
CHANNELS = 8


def read_reanalysis(hours: int, seed: int = 0) -> np.ndarray:
    """Stands for the reader of the hourly files: smooth fields that drift to the east."""
    rng = np.random.default_rng(seed)
    freq = np.hypot(np.fft.fftfreq(SIDE)[:, None], np.fft.rfftfreq(SIDE)[None, :])
    noise = rng.standard_normal((16, CHANNELS, SIDE, SIDE // 2 + 1)) * np.exp(-30 * freq)
    base = np.fft.irfft2(noise, s=(SIDE, SIDE)).astype(np.float32)
    base /= base.std(axis=(-1, -2), keepdims=True)
    frames = []
    for hour in range(hours):
        a, b = base[hour // 80 % 16], base[(hour // 80 + 1) % 16]
        weight = hour % 80 / 80
        frames.append(np.roll((1 - weight) * a + weight * b, hour, axis=-1).astype(np.float32))
    return np.stack(frames, axis=-1)


class NowcastDataset(Dataset):
    HISTORY = 2
    LEAD = 6

    def __init__(self, cube: np.ndarray):
        self.cube = cube

    def __len__(self):
        return self.cube.shape[-1] - self.HISTORY - self.LEAD

    def __getitem__(self, index):
        past = [self.cube[..., index + k] for k in range(self.HISTORY)]
        rain = self.cube[0, :, :, index + self.HISTORY + self.LEAD - 1]
        return torch.from_numpy(np.concatenate(past)), torch.from_numpy(np.maximum(rain, 0))  # costs time


def block(cin, cout, stride=1):
    conv = nn.Conv2d(cin, cout, 3, stride=stride, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(cout), nn.ReLU(inplace=True))


class UNet(nn.Module):
    def __init__(self, cin, width):
        super().__init__()
        self.down1 = block(cin, width, stride=2)
        self.down2 = block(width, 2 * width)
        self.mid = block(2 * width, 2 * width)
        self.up2 = block(4 * width, width)
        self.up1 = block(2 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        x1 = self.down1(x)
        x2 = self.down2(F.max_pool2d(x1, 2))
        x3 = self.mid(F.max_pool2d(x2, 2))
        y = self.up2(torch.cat([F.interpolate(x3, scale_factor=2), x2], dim=1))
        y = self.up1(torch.cat([F.interpolate(y, scale_factor=2), x1], dim=1))
        return F.interpolate(self.out(y), scale_factor=2, mode="bilinear").squeeze(1)


class Nowcaster(L.LightningModule):
    def __init__(self, width=6, lr=2e-3):
        super().__init__()
        self.net = UNet(CHANNELS * NowcastDataset.HISTORY, width)
        self.to(memory_format=torch.channels_last)
        self.lr = lr

    def training_step(self, batch, batch_idx):
        fields, rain = batch
        loss = F.mse_loss(self.net(fields), rain)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        fields, rain = batch
        self.log("val_rmse", F.mse_loss(self.net(fields), rain).sqrt())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


if __name__ == "__main__":
    L.seed_everything(7)
    data = NowcastDataset(read_reanalysis(hours=1700))
    split = 1500
    train = DataLoader(Subset(data, range(split)), batch_size=16, shuffle=True, drop_last=True)
    val = DataLoader(Subset(data, range(split + 8, len(data))), batch_size=16)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Nowcaster(), train, val)
