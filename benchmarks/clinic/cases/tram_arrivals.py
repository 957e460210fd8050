"""Forecasts the delay of trams at the next stops from the delays so far. Epochs are short, and the two loader
workers are started again for each of them.
---
expect: PD104
half: score
fix:
  ? "num_workers=2,"
  : "num_workers=2, persistent_workers=True,"
"""

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

STOPS = 30
HORIZON = 5
MAX_EPOCHS = 58


class TramRuns(Dataset):
    """One item is a window of a run: delays up to now, time of day, weekday, and the delays to forecast."""

    def __init__(self, runs: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        shocks = rng.gamma(0.5, 20.0, size=(runs, STOPS)) - 8.0
        self.delays = np.maximum(np.cumsum(shocks, axis=1), -30.0).astype(np.float32)
        self.departure = rng.uniform(5.0, 24.0, size=runs).astype(np.float32)
        self.weekday = rng.integers(0, 7, size=runs)
        self.cut = rng.integers(6, STOPS - HORIZON, size=runs)

    def __len__(self) -> int:
        return len(self.delays)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        cut = self.cut[index]
        inputs = np.zeros(STOPS + 3, dtype=np.float32)
        inputs[:cut] = self.delays[index, :cut] / 60.0
        angle = 2.0 * np.pi * self.departure[index] / 24.0
        inputs[STOPS:] = np.cos(angle), np.sin(angle), float(self.weekday[index] >= 5)
        return inputs, self.delays[index, cut : cut + HORIZON] / 60.0


class DelayForecaster(L.LightningModule):
    def __init__(self, width: int = 640) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(STOPS + 3, width),
            nn.GELU(),
            nn.Linear(width, width),
            nn.GELU(),
            nn.Linear(width, HORIZON),
        )

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        inputs, delays = batch
        return F.smooth_l1_loss(self.net(inputs), delays)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


def main() -> None:
    L.seed_everything(21)
    loader = DataLoader(
        TramRuns(runs=1280, seed=21),
        batch_size=128,
        shuffle=True,
        drop_last=True,
        num_workers=2,
    )
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=MAX_EPOCHS,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
    )
    trainer.fit(DelayForecaster(), loader)


if __name__ == "__main__":
    main()
