"""A residual network forecasts the load of an energy grid from windows over series that lie in memory; the training
loader nevertheless uses four worker processes.
---
expect: [PD103, PD102]
fix:
  "num_workers=4": "num_workers=0"
half: tune
"""

import lightning
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

STATIONS, HISTORY, HORIZON = 24, 168, 24  # hours


class LoadWindows(Dataset):
    """A week of the hourly load of all stations, and the next day of the whole grid."""

    def __init__(self, hours, seed):
        generator = torch.Generator().manual_seed(seed)
        hour = torch.arange(hours).unsqueeze(1)
        phase = 6.28 * torch.rand(1, STATIONS, generator=generator)
        daily = torch.sin(6.2832 * hour / 24 + phase)
        weekly = torch.sin(6.2832 * hour / 168 + phase)
        self.load = daily + 0.5 * weekly + 0.3 * torch.randn(hours, STATIONS, generator=generator)
        self.total = self.load.mean(1)

    def __len__(self):
        return len(self.load) - HISTORY - HORIZON

    def __getitems__(self, indices):
        start = torch.tensor(indices).unsqueeze(1)
        history = self.load[start + torch.arange(HISTORY)]
        future = self.total[start + HISTORY + torch.arange(HORIZON)]
        return history.flatten(1), future


def as_is(batch):
    return batch


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, width)
        self.outer = nn.Linear(width, width)

    def forward(self, x):
        return x + self.outer(F.relu(self.inner(self.norm(x))))


class LoadForecast(lightning.LightningModule):
    def __init__(self, width=128):
        super().__init__()
        self.embed = nn.Linear(HISTORY * STATIONS, width)
        self.blocks = nn.Sequential(Residual(width), Residual(width))
        self.head = nn.Linear(width, HORIZON)

    def forward(self, history):
        return self.head(self.blocks(self.embed(history)))

    def training_step(self, batch, batch_idx):
        history, future = batch
        return F.mse_loss(self(history), future)

    def validation_step(self, batch, batch_idx):
        history, future = batch
        self.log("val_mse", F.mse_loss(self(history), future), batch_size=len(history))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    lightning.seed_everything(23)
    train = DataLoader(
        LoadWindows(24 * 365 * 3, 1), batch_size=256, shuffle=True, num_workers=4, collate_fn=as_is, drop_last=True
    )
    valid = DataLoader(LoadWindows(24 * 60, 2), batch_size=256, collate_fn=as_is)
    trainer = lightning.Trainer(
        max_epochs=4,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(LoadForecast(), train, valid)
    print("val_mse", trainer.callback_metrics["val_mse"].item())
