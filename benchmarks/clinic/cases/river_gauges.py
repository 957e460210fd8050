"""Forecasts the water level at a river gauge from the last days of levels and rain with an LSTM.
The whole validation set is evaluated every few training batches.
---
expect: PD601
half: score
fix:
  ? "val_check_interval=8,"
  : "val_check_interval=1.0,"
"""

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

WINDOW = 48
LEAD = 12
CHANNELS = 3
MAX_EPOCHS = 2


def gauge_windows(hours: int, seed: int) -> TensorDataset:
    """Windows of level, rain, and snow melt; rain reaches the gauge through a slow linear reservoir."""
    rng = np.random.default_rng(seed)
    rain = rng.gamma(0.15, 4.0, size=hours)
    melt = np.maximum(np.sin(np.arange(hours) * 2.0 * np.pi / 24.0), 0.0) * rng.uniform(0.0, 1.0, size=hours)
    response = np.exp(-np.arange(96) / 18.0)
    level = np.convolve(rain + melt, response)[:hours]
    series = np.stack([level / level.std(), rain / rain.std(), melt / melt.std()], axis=1).astype(np.float32)
    views = np.lib.stride_tricks.sliding_window_view(series, WINDOW + LEAD, axis=0)
    windows = torch.from_numpy(np.ascontiguousarray(views.transpose(0, 2, 1)))
    return TensorDataset(windows[:, :WINDOW].contiguous(), windows[:, WINDOW:, 0].contiguous())


class GaugeForecaster(L.LightningModule):
    def __init__(self, hidden: int = 96) -> None:
        super().__init__()
        self.encoder = nn.LSTM(CHANNELS, hidden, batch_first=True)
        self.head = nn.Linear(hidden, LEAD)

    def forward(self, past: torch.Tensor) -> torch.Tensor:
        states, _ = self.encoder(past)
        return self.head(states[:, -1])

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        past, future = batch
        return F.mse_loss(self(past), future)

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        past, future = batch
        self.log("val_mae", F.l1_loss(self(past), future))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=2e-3, fused=True)


def batched(dataset: TensorDataset, batch_size: int, shuffle: bool) -> DataLoader:
    order = RandomSampler(dataset) if shuffle else SequentialSampler(dataset)
    return DataLoader(dataset, sampler=BatchSampler(order, batch_size, drop_last=shuffle), batch_size=None)


def main() -> None:
    L.seed_everything(7)
    train = gauge_windows(hours=128 * 90 + WINDOW + LEAD, seed=7)
    held_out = gauge_windows(hours=5000, seed=8)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=MAX_EPOCHS,
        val_check_interval=8,
        num_sanity_val_steps=0,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
    )
    trainer.fit(GaugeForecaster(), batched(train, 128, shuffle=True), batched(held_out, 256, shuffle=False))
    print({name: round(float(value), 4) for name, value in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
