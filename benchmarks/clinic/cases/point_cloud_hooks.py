"""A PointNet classifies synthetic point clouds; a callback watches the head's activations. It registers its forward
hooks again at the start of every batch, without removing the earlier ones, so that every step runs more of them.
---
expect: [PD504, PD605, PD511]
half: tune
fix:
  ? "def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):"
  : "def on_fit_start(self, trainer, pl_module):"
  ? "self.latest[name] = torch.stack([out.mean(), out.std(), (out <= 0).float().mean()])  # costs time"
  : "self.latest[name] = torch.stack([out.mean(), out.std(), (out <= 0).float().mean()])"
"""

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

POINTS = 192
CLASSES = 6


def make_clouds(count, seed):
    """Spheres, boxes, ellipsoids and so on: points on super-quadrics of six exponents, scaled and jittered."""
    gen = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=gen)
    directions = F.normalize(torch.randn(count, POINTS, 3, generator=gen), dim=-1)
    power = (1.0 + 0.6 * labels.float()).view(-1, 1, 1)
    norm = directions.abs().pow(power).sum(-1, keepdim=True).pow(1 / power)
    scale = 0.7 + 0.6 * torch.rand(count, 1, 3, generator=gen)
    clouds = directions / norm * scale + 0.02 * torch.randn(count, POINTS, 3, generator=gen)
    return TensorDataset(clouds.transpose(1, 2).contiguous(), labels)


class ActivationMonitor(Callback):
    """Logs the mean, the spread and the share of dead units of the head's layers every now and then."""

    def __init__(self, every=50):
        self.every = every
        self.latest = {}

    def watch(self, name):
        def hook(module, inputs, out):
            with torch.no_grad():
                self.latest[name] = torch.stack([out.mean(), out.std(), (out <= 0).float().mean()])  # costs time

        return hook

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        for name, module in pl_module.head.named_children():
            module.register_forward_hook(self.watch(f"head.{name}"))

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step % self.every == 0:
            for name, (mean, std, dead) in self.latest.items():
                pl_module.log_dict({f"{name}/mean": mean, f"{name}/std": std, f"{name}/dead": dead})


def point_layer(inputs, outputs):
    return nn.Sequential(nn.Conv1d(inputs, outputs, 1, bias=False), nn.BatchNorm1d(outputs), nn.ReLU(inplace=True))


class PointNet(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.points = nn.Sequential(point_layer(3, 64), point_layer(64, 64), point_layer(64, 192))
        self.head = nn.Sequential(
            nn.Linear(192, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, CLASSES)
        )

    def forward(self, clouds):
        return self.head(self.points(clouds).amax(dim=2))

    def training_step(self, batch, batch_idx):
        clouds, labels = batch
        loss = F.cross_entropy(self(clouds), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        clouds, labels = batch
        self.log("val_acc", (self(clouds).argmax(1) == labels).float().mean(), batch_size=len(labels))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


if __name__ == "__main__":
    L.seed_everything(3)
    train_loader = DataLoader(make_clouds(1600, 1), batch_size=24, shuffle=True, drop_last=True)
    val_loader = DataLoader(make_clouds(240, 2), batch_size=48)
    trainer = L.Trainer(accelerator="cpu", max_epochs=3, callbacks=[ActivationMonitor()], enable_progress_bar=False)
    trainer.fit(PointNet(), train_loader, val_loader)
    print("validation accuracy", float(trainer.callback_metrics["val_acc"]))
