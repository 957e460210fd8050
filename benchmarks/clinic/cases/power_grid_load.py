"""Day-ahead forecast of feeder loads with an MLP-mixer over a week of hourly values. The mistake is that NumPy's
float64 arrays are kept and the whole training runs in double precision.
---
expect: PD315
half: tune
fix:
  ? "torch.from_numpy(loads)"
  : "torch.from_numpy(loads).float()"
  ? 'precision="64-true",'
  : 'precision="32-true",'
"""

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

FEEDERS = 64
HISTORY = 168
HORIZON = 24


def make_loads(hours: int, seed: int) -> np.ndarray:
    """Return standardized hourly loads of all feeders, shape (hours, FEEDERS)."""
    rng = np.random.default_rng(seed)
    t = np.arange(hours)[:, None]
    phase = rng.uniform(0, 2 * np.pi, FEEDERS)
    daily = np.sin(2 * np.pi * t / 24 + phase)
    weekly = 0.5 * np.cos(2 * np.pi * t / 168 + 0.3 * phase)
    drift = np.cumsum(0.01 * rng.standard_normal((hours, FEEDERS)), axis=0)
    loads = daily + weekly + drift + 0.2 * rng.standard_normal((hours, FEEDERS))
    return (loads - loads.mean(axis=0)) / loads.std(axis=0)


class LoadWindows(Dataset):
    """Sliding windows of history and horizon over the load table."""

    def __init__(self, loads: np.ndarray) -> None:
        self.loads = torch.from_numpy(loads)

    def __len__(self) -> int:
        return len(self.loads) - HISTORY - HORIZON + 1

    def __getitem__(self, start: int) -> tuple[torch.Tensor, torch.Tensor]:
        middle = start + HISTORY
        return self.loads[start:middle], self.loads[middle : middle + HORIZON]


class MixerBlock(nn.Module):
    """Mixes over time, then over feeders, with residual connections."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.time_norm = nn.LayerNorm(HISTORY)
        self.time = nn.Sequential(nn.Linear(HISTORY, hidden), nn.ReLU(), nn.Linear(hidden, HISTORY))
        self.feeder_norm = nn.LayerNorm(FEEDERS)
        self.feeder = nn.Sequential(nn.Linear(FEEDERS, hidden), nn.ReLU(), nn.Linear(hidden, FEEDERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.time(self.time_norm(x))
        mixed = self.feeder(self.feeder_norm(x.transpose(1, 2)))
        return x + mixed.transpose(1, 2)


class LoadForecaster(L.LightningModule):
    def __init__(self, hidden: int = 128, depth: int = 2, lr: float = 1e-3) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(MixerBlock(hidden) for _ in range(depth)))
        self.project = nn.Linear(HISTORY, HORIZON)
        self.lr = lr

    def forward(self, history: torch.Tensor) -> torch.Tensor:
        return self.project(self.blocks(history.transpose(1, 2))).transpose(1, 2)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> torch.Tensor:
        history, future = batch
        loss = F.l1_loss(self(history), future)
        self.log("train_mae", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self) -> dict:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=1e-4)
        total = int(self.trainer.estimated_stepping_batches)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3 * self.lr, total_steps=total)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def main() -> None:
    L.seed_everything(31)
    loads = make_loads(hours=24 * 260, seed=31)
    loader = DataLoader(LoadWindows(loads), batch_size=32, shuffle=True, drop_last=True)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        precision="64-true",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(LoadForecaster(), loader)
    print(f"train MAE {trainer.callback_metrics['train_mae']:.4f}")


if __name__ == "__main__":
    main()
