"""Trains a point network that classifies objects cut out of lidar sweeps; a callback that watches the load of the
machine waits for its measurement during the training.
---
expect: PD504
fix: {"cpu_percent(interval=0.1)": "cpu_percent(interval=None)"}
half: tune
"""

import lightning
import numpy as np
import psutil
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

CLASSES, POINTS = 6, 128


def make_objects(number=4_000, seed=8):
    """Shells of boxes (car, van, bus, person, pole, sign) with intensity, turned about the vertical axis."""
    rng = np.random.default_rng(seed)
    size = np.array([[4.2, 1.8, 1.5], [5.5, 2.0, 2.2], [11, 2.5, 3.2], [0.5, 0.5, 1.7], [0.2, 0.2, 5], [0.9, 0.1, 2.4]])
    label = rng.integers(0, CLASSES, number)
    points = rng.uniform(-0.5, 0.5, (number, POINTS, 3)).astype(np.float32)
    side = rng.integers(0, 3, (number, POINTS, 1))
    np.put_along_axis(points, side, np.float32(0.5) * rng.choice([-1, 1], side.shape).astype(np.float32), axis=2)
    points *= (size[label] * rng.uniform(0.8, 1.2, (number, 3)))[:, None].astype(np.float32)
    intensity = rng.normal(0.1 * label[:, None, None], 0.2, (number, POINTS, 1)).astype(np.float32)
    return torch.from_numpy(np.concatenate([points, intensity], axis=2)), torch.from_numpy(label)


class Objects(Dataset):
    def __init__(self, points, labels):
        self.points, self.labels = points, labels

    def __len__(self):
        return len(self.labels)

    def __getitems__(self, indices):
        return self.points[indices], self.labels[indices]


class LoadWatch(lightning.Callback):
    """Notes the load of processor and memory now and then and reports it after each epoch."""

    def __init__(self, every=3):
        self.every, self.cpu, self.memory = every, [], []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx % self.every == 0:
            self.cpu.append(psutil.cpu_percent(interval=0.1))  # costs time
            self.memory.append(psutil.virtual_memory().percent)

    def on_train_epoch_end(self, trainer, pl_module):
        print(f"epoch {trainer.current_epoch}: cpu {np.mean(self.cpu):.0f} %, memory {max(self.memory):.0f} %")
        self.cpu.clear()
        self.memory.clear()


class PointNet(lightning.LightningModule):
    def __init__(self, width=64):
        super().__init__()
        self.point = nn.Sequential(
            nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, 2 * width)
        )
        self.head = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, CLASSES))

    def forward(self, points):
        return self.head(self.point(points).amax(dim=1))

    def training_step(self, batch, batch_idx):
        points, labels = batch
        angle = 2 * torch.pi * torch.rand(len(points), 1, 1)
        x, y = points[..., :1], points[..., 1:2]
        turned = torch.cat(
            [angle.cos() * x - angle.sin() * y, angle.sin() * x + angle.cos() * y, points[..., 2:]], dim=2
        )
        return F.cross_entropy(self(turned), labels)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


def main():
    lightning.seed_everything(8)
    loader = DataLoader(
        Objects(*make_objects()), batch_size=64, shuffle=True, drop_last=True, collate_fn=lambda batch: batch
    )
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[LoadWatch()],
    )
    trainer.fit(PointNet(), loader)


if __name__ == "__main__":
    main()
