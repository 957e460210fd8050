"""A GRU predicts the remaining useful life of jet engines from windows of their sensors. The windows are
views of the runs' tensors, batches are cut out whole, and the best checkpoint by validation error is kept.
---
half: score
"""

import tempfile

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, Dataset

SENSORS = 14
WINDOW = 50
CAP = 125


def fly_engines(engines: int, seed: int):
    """Sensor runs of engines that wear out: drifts that grow with wear, flight regimes and noise."""
    gen = torch.Generator().manual_seed(seed)
    drift = torch.randn(SENSORS, generator=torch.Generator().manual_seed(4))
    runs = []
    for life in torch.randint(150, 260, (engines,), generator=gen).tolist():
        wear = (torch.arange(life) / life) ** 3
        regime = torch.sin(torch.arange(life) * 0.3 + 6 * torch.rand(1, generator=gen))
        noise = 0.3 * torch.randn(life, SENSORS, generator=gen)
        sensors = wear[:, None] * drift + 0.2 * regime[:, None] + noise
        left = torch.arange(life - 1, -1, -1).clamp(max=CAP) / CAP
        runs.append((sensors, left))
    return runs


class EngineWindows(Dataset):
    """All windows of all runs in one flat tensor, indexed by the place where a window starts."""

    def __init__(self, runs):
        self.sensors = torch.cat([sensors for sensors, _ in runs])
        self.left = torch.cat([left for _, left in runs])
        starts, offset = [], 0
        for sensors, _ in runs:
            starts.append(torch.arange(offset, offset + len(sensors) - WINDOW))
            offset += len(sensors)
        self.starts = torch.cat(starts)
        self.windows = self.sensors.unfold(0, WINDOW, 1).transpose(1, 2)

    def __len__(self):
        return len(self.starts)

    def __getitems__(self, indices):
        starts = self.starts[indices]
        return self.windows[starts], self.left[starts + WINDOW - 1]


def whole_batch(batch):
    return batch


class WearModel(L.LightningModule):
    def __init__(self, hidden=64, layers=2, lr=2e-3):
        super().__init__()
        self.save_hyperparameters()
        self.norm = nn.BatchNorm1d(SENSORS)
        self.gru = nn.GRU(SENSORS, hidden, layers, batch_first=True)
        self.head = nn.Sequential(nn.Linear(hidden, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, windows):
        x = self.norm(windows.transpose(1, 2)).transpose(1, 2)
        states, _ = self.gru(x)
        return self.head(states[:, -1]).squeeze(-1)

    def training_step(self, batch, batch_idx):
        windows, left = batch
        loss = F.smooth_l1_loss(self(windows), left, beta=0.1)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        windows, left = batch
        error = CAP * (self(windows) - left)
        self.log("val_mae", error.abs().mean(), batch_size=len(left))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val_mae"}}


if __name__ == "__main__":
    L.seed_everything(2)
    train_set, val_set = EngineWindows(fly_engines(50, 1)), EngineWindows(fly_engines(5, 2))
    train = DataLoader(train_set, batch_size=96, shuffle=True, drop_last=True, collate_fn=whole_batch)
    val = DataLoader(val_set, batch_size=192, collate_fn=whole_batch)
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            accelerator="cpu",
            max_epochs=4,
            gradient_clip_val=1.0,
            callbacks=[ModelCheckpoint(folder, monitor="val_mae"), EarlyStopping("val_mae", patience=3)],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(WearModel(), train, val)
