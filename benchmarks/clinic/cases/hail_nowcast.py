"""A small U-Net forecasts hail from radar frames, and a history callback builds the whole table of all past steps again
and rewrites its CSV file after each batch.
---
expect: PD504
fix:
  ? |2
            self.rows.append(row)
            self.flush()
  : |2
            self.rows.append(row)
half: score
"""

import os
import tempfile
import time

import lightning
import pandas as pd
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SIZE, FRAMES = 32, 4


def radar(count):
    gen = torch.Generator().manual_seed(31)
    axis = torch.arange(SIZE, dtype=torch.float32)
    start = torch.rand(count, 2, generator=gen) * SIZE
    drift = torch.randn(count, 2, generator=gen) * 1.5
    cells = []
    for step in range(FRAMES + 1):
        y, x = (start + step * drift).unbind(1)
        far = (axis[:, None] - y[:, None, None]) ** 2 + (axis - x[:, None, None]) ** 2
        cells.append(torch.exp(-far / 18))
    movie = torch.stack(cells, dim=1)
    frames = movie[:, :FRAMES] + 0.05 * torch.randn(count, FRAMES, SIZE, SIZE, generator=gen)
    return TensorDataset(frames, (movie[:, FRAMES:] > 0.5).float())


def pair(inside, outside):
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, padding=1), nn.ReLU(), nn.Conv2d(outside, outside, 3, padding=1), nn.ReLU()
    )


class HailNet(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.down = pair(FRAMES, 16)
        self.deep = pair(16, 32)
        self.up = nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.out = nn.Sequential(nn.Conv2d(32, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 1, 1))

    def forward(self, frames):
        fine = self.down(frames)
        coarse = self.deep(F.max_pool2d(fine, 2))
        return self.out(torch.cat([fine, self.up(coarse)], dim=1))

    def training_step(self, batch, batch_idx):
        frames, hail = batch
        return F.binary_cross_entropy_with_logits(self(frames), hail)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


class RunHistory(lightning.Callback):
    """Keeps one row per step for the plots made after the run."""

    def __init__(self, path):
        self.path, self.rows, self.began = path, [], time.perf_counter()

    def flush(self):
        pd.DataFrame(self.rows).to_csv(self.path, index=False)  # costs time

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        row = {
            "epoch": trainer.current_epoch,
            "step": trainer.global_step,
            "loss": outputs["loss"].item(),
            "rate": trainer.optimizers[0].param_groups[0]["lr"],
            "seconds": time.perf_counter() - self.began,
        }
        self.rows.append(row)
        self.flush()

    def on_train_epoch_end(self, trainer, pl_module):
        self.flush()


if __name__ == "__main__":
    lightning.seed_everything(6, verbose=False)
    folder = tempfile.mkdtemp()
    loader = DataLoader(radar(8 * 200), batch_size=8, shuffle=True)
    trainer = lightning.Trainer(
        max_epochs=4,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[RunHistory(os.path.join(folder, "history.csv"))],
    )
    trainer.fit(HailNet(), loader)
