"""Forecasts the load of the regions of a power grid for the next day from the last week. A callback keeps a journal
with the loss, the learning rate and the error of each region at each step. It appends each row to a DataFrame by
copying it and writes the whole CSV file again at each batch; collect the rows in a list and write the file at the
end of the epoch.
---
expect: [PD504, PD511]
fix:
  ? |2-
            self.journal = pd.DataFrame()
  : |2-
            self.rows = []
  ? |2-
            self.journal = pd.concat([self.journal, pd.DataFrame([row])], ignore_index=True)
            self.journal.to_csv(self.path, index=False, float_format="%.5f")  # costs time
  : |2-
            self.rows.append(row)

        def on_train_epoch_end(self, trainer, pl_module):
            pd.DataFrame(self.rows).to_csv(self.path, index=False, float_format="%.5f")
half: score
"""

import tempfile
from pathlib import Path

import lightning as L
import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

REGIONS = [f"{area}{number}" for area in ("north", "east", "south", "west") for number in range(1, 6)]
HISTORY = 7 * 24
HORIZON = 24


def meter_readings(days=900, seed=0):
    """Hourly load of each region, standardized: daily and weekly cycles, season and autocorrelated noise."""
    rng = np.random.default_rng(seed)
    hour = np.arange(days * 24)[:, None]
    peak = rng.uniform(7, 20, len(REGIONS))
    load = (
        np.cos(2 * np.pi * (hour - peak) / 24)
        + 0.4 * (hour // 24 % 7 < 5)
        + 0.6 * np.cos(2 * np.pi * hour / (24 * 365))
    )
    noise = rng.normal(0, 0.1, load.shape)
    for t in range(1, len(noise)):
        noise[t] += 0.9 * noise[t - 1]
    load += noise
    return torch.from_numpy((load - load.mean(0)) / load.std(0)).float()


class LoadWindows(Dataset):
    """A week of history and the day after it, starting at any hour; a list of indices gives a batch."""

    def __init__(self, load):
        self.windows = load.unfold(0, HISTORY + HORIZON, 1)

    def __len__(self):
        return len(self.windows)

    def __getitem__(self, indices):
        windows = self.windows[indices]
        return windows[..., :HISTORY], windows[..., HISTORY:]


class Journal(L.Callback):
    """Keeps a row per training step in a CSV file."""

    def __init__(self, path):
        self.path = path
        self.journal = pd.DataFrame()

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        row = {
            "step": trainer.global_step,
            "loss": outputs["loss"].item(),
            "learning_rate": trainer.optimizers[0].param_groups[0]["lr"],
        }
        row.update(zip(REGIONS, outputs["region_error"].tolist(), strict=False))
        self.journal = pd.concat([self.journal, pd.DataFrame([row])], ignore_index=True)
        self.journal.to_csv(self.path, index=False, float_format="%.5f")  # costs time


class LoadForecaster(L.LightningModule):
    def __init__(self, width=96, layers=2, learning_rate=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.embed = nn.Linear(HISTORY, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.mix = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, HORIZON)

    def forward(self, history):
        level = history[..., -24:].mean(-1, keepdim=True)
        return level + self.head(self.mix(self.embed(history - level)))

    def training_step(self, batch, batch_idx):
        history, future = batch
        forecast = self(history)
        loss = F.mse_loss(forecast, future)
        region_error = (forecast.detach() - future).abs().mean((0, 2))
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(history))
        return {"loss": loss, "region_error": region_error}

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.learning_rate, fused=True)
        steps = self.trainer.estimated_stepping_batches
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.hparams.learning_rate, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def main():
    L.seed_everything(17)
    windows = LoadWindows(meter_readings())
    sampler = BatchSampler(RandomSampler(windows), batch_size=32, drop_last=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.csv"
        trainer = L.Trainer(
            accelerator="cpu",
            max_epochs=1,
            callbacks=[Journal(path)],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
        )
        trainer.fit(LoadForecaster(), DataLoader(windows, sampler=sampler, batch_size=None))
        worst = pd.read_csv(path)[REGIONS].tail(50).mean().sort_values().tail(3)
    print(f"train loss {trainer.callback_metrics['train_loss']:.4f}")
    print("largest errors:", ", ".join(f"{region} {error:.3f}" for region, error in worst.items()))


if __name__ == "__main__":
    main()
