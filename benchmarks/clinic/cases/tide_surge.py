"""Predicts the storm surge (water level minus astronomical tide) at tide gauges from the last two days of surge and
wind. The model takes the list of gauges for their positions, and save_hyperparameters() keeps it with all records of
water levels, so that each checkpoint pickles and writes them again; leave the gauges out of the hyperparameters.
---
expect: PD602
fix:
  ? |2-
            self.save_hyperparameters()  # costs time
  : |2-
            self.save_hyperparameters(ignore="gauges")
half: score
"""

import tempfile
from dataclasses import dataclass

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

CONSTITUENTS = {"M2": 12.4206, "S2": 12.0, "N2": 12.6583, "K1": 23.9345, "O1": 25.8193}  # periods in hours
HISTORY = 48
LEAD = 6


@dataclass
class Gauge:
    name: str
    latitude: float
    longitude: float
    amplitudes: dict
    phases: dict
    levels: np.ndarray
    wind: np.ndarray

    def astronomical_tide(self):
        hours = np.arange(len(self.levels))
        return sum(
            amplitude * np.cos(2 * np.pi * hours / CONSTITUENTS[name] - self.phases[name])
            for name, amplitude in self.amplitudes.items()
        )


def install_gauges(count=80, hours=4 * 365 * 24, seed=0):
    """Gauges along a coast with hourly records of level (m) and wind (m/s along and across the shore)."""
    rng = np.random.default_rng(seed)
    kernel = np.exp(-np.arange(72) / 18.0)
    weather = np.apply_along_axis(np.convolve, 0, rng.normal(0, 2, (hours, 2)), kernel, "same")
    gauges = []
    for number in range(count):
        wind = weather + np.apply_along_axis(np.convolve, 0, rng.normal(0, 1, (hours, 2)), kernel, "same")
        amplitudes = {name: rng.uniform(0.1, 1.2) for name in CONSTITUENTS}
        phases = {name: rng.uniform(0, 2 * np.pi) for name in CONSTITUENTS}
        gauge = Gauge(
            f"G{number:03d}", 42 + 0.2 * number, rng.uniform(-71, -70), amplitudes, phases, np.zeros(hours), wind
        )
        surge = 0.04 * np.roll(wind[:, 0], LEAD) + 0.02 * np.roll(wind[:, 1], 2 * LEAD)
        gauge.levels = gauge.astronomical_tide() + surge + rng.normal(0, 0.02, hours)
        gauges.append(gauge)
    return gauges


class SurgeWindows(Dataset):
    """Two days of surge and wind at a gauge and the surge some hours later; a list of indices gives a batch."""

    def __init__(self, gauges):
        surge = np.stack([gauge.levels - gauge.astronomical_tide() for gauge in gauges])
        wind = np.stack([gauge.wind.T for gauge in gauges]) / 10.0
        series = torch.from_numpy(np.concatenate([surge[:, None], wind], 1)).float()
        self.windows = series.unfold(2, HISTORY + LEAD, 6)
        self.starts = self.windows.shape[2]

    def __len__(self):
        return self.windows.shape[0] * self.starts

    def __getitem__(self, indices):
        number, start = np.divmod(np.asarray(indices), self.starts)
        windows = self.windows[number, :, start]
        return torch.from_numpy(number), windows[:, :, :HISTORY], windows[:, 0, -1]


class SurgeModel(L.LightningModule):
    def __init__(self, gauges, width=64, learning_rate=1e-3):
        super().__init__()
        self.save_hyperparameters()  # costs time
        positions = torch.tensor([(gauge.latitude, gauge.longitude) for gauge in gauges])
        self.register_buffer("positions", (positions - positions.mean(0)) / positions.std(0))
        self.place = nn.Linear(2, width)
        self.recurrence = nn.GRU(3, width, batch_first=True)
        self.head = nn.Sequential(nn.Linear(2 * width, width), nn.GELU(), nn.Linear(width, 1))

    def forward(self, number, history):
        _, state = self.recurrence(history.transpose(1, 2))
        place = self.place(self.positions[number])
        return self.head(torch.cat([state[-1], place], -1)).squeeze(-1)

    def training_step(self, batch, batch_idx):
        number, history, surge = batch
        loss = F.smooth_l1_loss(self(number, history), surge, beta=0.1)
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(surge))
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.learning_rate, fused=True)


def main():
    L.seed_everything(29)
    gauges = install_gauges()
    windows = SurgeWindows(gauges)
    sampler = BatchSampler(RandomSampler(windows, num_samples=32_000), batch_size=128, drop_last=True)
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = ModelCheckpoint(folder, every_n_train_steps=50, save_top_k=1, monitor="step", mode="max")
        trainer = L.Trainer(
            accelerator="cpu",
            max_epochs=2,
            callbacks=[checkpoints],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(SurgeModel(gauges), DataLoader(windows, sampler=sampler, batch_size=None))
    print(f"train loss {trainer.callback_metrics['train_loss']:.5f}")


if __name__ == "__main__":
    main()
