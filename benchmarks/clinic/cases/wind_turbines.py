"""Forecast of wind-turbine power from windows of sensor readings with a dilated temporal CNN. The readings come from
NumPy as float64 and the model was converted to match them.
---
expect: PD315
half: tune
fix:
  ? "return TensorDataset(torch.from_numpy(windows), torch.from_numpy(target))"
  : "return TensorDataset(torch.from_numpy(windows).float(), torch.from_numpy(target).float())"
  ? "model = PowerForecaster().double()"
  : "model = PowerForecaster()"
"""

import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

TURBINES, HOURS, WINDOW, HORIZON, SENSORS = 8, 600, 64, 6, 8
BATCH = 32


def make_windows() -> TensorDataset:
    """Normalized readings of all turbines cut to windows, and the power of the next hours."""
    rng = np.random.default_rng(71)
    gusts = rng.normal(size=(TURBINES, HOURS))
    wind = np.zeros_like(gusts)
    for hour in range(1, HOURS):
        wind[:, hour] = 0.95 * wind[:, hour - 1] + 0.3 * gusts[:, hour]
    power = 1.0 / (1.0 + np.exp(-2.0 * wind))
    mixing = rng.normal(size=(SENSORS, 2))
    readings = np.einsum("sk,kth->tsh", mixing, np.stack([wind, power])) + rng.normal(
        scale=0.1, size=(TURBINES, SENSORS, HOURS)
    )
    starts = np.arange(HOURS - WINDOW - HORIZON)
    windows = readings[:, :, starts[:, None] + np.arange(WINDOW)].transpose(0, 2, 1, 3).reshape(-1, SENSORS, WINDOW)
    target = power[:, starts[:, None] + WINDOW + np.arange(HORIZON)].reshape(-1, HORIZON)
    return TensorDataset(torch.from_numpy(windows), torch.from_numpy(target))


class DilatedBlock(nn.Module):
    """Residual convolution with growing reach."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(width, width, 3, padding=dilation, dilation=dilation)
        self.mix = nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mix(F.relu(self.conv(x)))


class PowerForecaster(LightningModule):
    """Dilated CNN over the window, linear head on its last step."""

    def __init__(self, width: int = 64, depth: int = 4, lr: float = 1e-3) -> None:
        super().__init__()
        self.lr = lr
        self.stem = nn.Conv1d(SENSORS, width, 1)
        self.blocks = nn.Sequential(*[DilatedBlock(width, 2**level) for level in range(depth)])
        self.head = nn.Linear(width, HORIZON)

    def forward(self, windows: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(windows))[..., -1])

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        windows, target = batch
        loss = F.smooth_l1_loss(self(windows), target)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr, fused=True)


def main() -> None:
    seed_everything(71)
    dataset = make_windows()
    loader = DataLoader(dataset, sampler=BatchSampler(RandomSampler(dataset), BATCH, drop_last=True), batch_size=None)
    model = PowerForecaster().double()
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader)


if __name__ == "__main__":
    main()
