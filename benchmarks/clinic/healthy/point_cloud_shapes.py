"""Classifies point clouds of simple shapes with a PointNet, with random rotations and jitter as augmentation.
---
half: score
"""

import math

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

POINTS, SHAPES = 192, 4


def make_clouds(count, seed):
    generator = torch.Generator().manual_seed(seed)
    shapes = torch.randint(0, SHAPES, (count,), generator=generator)
    raw = torch.randn(count, POINTS, 3, generator=generator)
    sphere = F.normalize(raw, dim=2)
    cube = raw / raw.abs().amax(2, keepdim=True)
    cylinder = torch.cat([F.normalize(raw[..., :2], dim=2), raw[..., 2:].clamp(-1, 1)], 2)
    cone = torch.cat([sphere[..., :2] * (1 - sphere[..., 2:].abs()), sphere[..., 2:].abs()], 2)
    forms = torch.stack([sphere, cube, cylinder, cone])
    clouds = forms[shapes, torch.arange(count)]
    scale = 0.5 + torch.rand(count, 1, 3, generator=generator)
    return TensorDataset(clouds * scale, shapes)


def augment(clouds):
    angle = 2 * math.pi * torch.rand(len(clouds))
    sine, cosine, zero, one = angle.sin(), angle.cos(), torch.zeros(len(clouds)), torch.ones(len(clouds))
    rows = [cosine, -sine, zero, sine, cosine, zero, zero, zero, one]
    rotation = torch.stack(rows, 1).view(-1, 3, 3)
    return torch.bmm(clouds, rotation) + 0.01 * torch.randn_like(clouds)


class PointNet(L.LightningModule):
    def __init__(self, width=128):
        super().__init__()
        self.points = nn.Sequential(
            nn.Linear(3, 64), nn.ReLU(inplace=True), nn.Linear(64, width), nn.ReLU(inplace=True), nn.Linear(width, 256)
        )
        self.head = nn.Sequential(nn.Linear(256, width), nn.ReLU(), nn.Dropout(0.3), nn.Linear(width, SHAPES))
        self.accuracy = MulticlassAccuracy(SHAPES)

    def forward(self, clouds):
        return self.head(self.points(clouds).amax(1))

    def training_step(self, batch, batch_idx):
        clouds, shapes = batch
        loss = F.cross_entropy(self(augment(clouds)), shapes, label_smoothing=0.1)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        clouds, shapes = batch
        logits = self(clouds)
        self.accuracy.update(logits, shapes)
        self.log("val_loss", F.cross_entropy(logits, shapes))
        self.log("val_accuracy", self.accuracy, prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=2e-3, fused=True)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, self.trainer.estimated_stepping_batches)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def main():
    L.seed_everything(31)
    train = DataLoader(make_clouds(3200, 0), batch_size=32, shuffle=True)
    val = DataLoader(make_clouds(320, 1), batch_size=64)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=3,
        callbacks=[LearningRateMonitor(), ModelCheckpoint(monitor="val_accuracy", mode="max")],
    )
    trainer.fit(PointNet(), train, val)


if __name__ == "__main__":
    main()
