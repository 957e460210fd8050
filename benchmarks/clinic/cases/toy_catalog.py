"""Recognizes toys on small catalog photos with a convolutional network; the photos are rotated, shifted and recolored
at random on the device. The augmentation is made for batches (with random numbers for each image), but the hook
calls it for each image by itself and stacks the results; call it once for the batch.
---
expect: [PD511, PD504]
fix:
  ? |2-
                photos = torch.stack([self.augment(photo[None])[0] for photo in photos])  # costs time
  : |2-
                photos = self.augment(photos)
half: score
"""

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

TOYS = ("teddy bear", "wooden train", "doll", "kite", "spinning top", "marble run")
SIZE = 28


def photograph(count, seed):
    """Colored shapes on a noisy background, one kind of outline per toy."""
    rng = np.random.default_rng(seed)
    kinds = rng.integers(len(TOYS), size=count)
    y, x = np.mgrid[-1 : 1 : SIZE * 1j, -1 : 1 : SIZE * 1j].astype(np.float32)
    radius, angle = np.hypot(x, y), np.arctan2(y, x)
    outlines = np.stack([radius < 0.45 + 0.25 * np.cos((kind + 2) * angle) for kind in range(len(TOYS))])
    colors = rng.uniform(0.3, 1.0, (count, 3, 1, 1)).astype(np.float32)
    photos = colors * outlines[kinds][:, None] + rng.normal(0, 0.15, (count, 3, SIZE, SIZE)).astype(np.float32)
    return TensorDataset(torch.from_numpy(np.clip(photos, 0, 1).astype(np.float32)), torch.from_numpy(kinds))


class RandomView(nn.Module):
    """Random rotation, zoom, shift, brightness and contrast of a batch of images (N, C, H, W)."""

    def __init__(self, degrees=20.0, zoom=0.15, shift=0.1, brightness=0.2, contrast=0.2):
        super().__init__()
        self.radians = degrees * torch.pi / 180
        self.zoom = zoom
        self.shift = shift
        self.brightness = brightness
        self.contrast = contrast

    @torch.no_grad()
    def forward(self, images):
        count = len(images)
        u = torch.rand(count, 6, device=images.device) * 2 - 1
        angle, scale = u[:, 0] * self.radians, 1 + u[:, 1] * self.zoom
        cos, sin = scale * torch.cos(angle), scale * torch.sin(angle)
        shift = u[:, 2:4] * self.shift
        theta = torch.stack([cos, -sin, shift[:, 0], sin, cos, shift[:, 1]], 1).view(count, 2, 3)
        grid = F.affine_grid(theta, images.shape, align_corners=False)
        images = F.grid_sample(images, grid, align_corners=False)
        mean = images.mean((1, 2, 3), keepdim=True)
        contrast = 1 + self.contrast * u[:, 4].view(-1, 1, 1, 1)
        brightness = self.brightness * u[:, 5].view(-1, 1, 1, 1)
        return ((images - mean) * contrast + mean + brightness).clamp_(0, 1)


class ToyClassifier(L.LightningModule):
    def __init__(self, width=16, learning_rate=2e-3):
        super().__init__()
        self.save_hyperparameters()
        self.augment = RandomView()
        self.features = nn.Sequential(
            self.stage(3, width), self.stage(width, 2 * width), self.stage(2 * width, 4 * width)
        )
        self.head = nn.Linear(4 * width, len(TOYS))

    @staticmethod
    def stage(channels_in, channels_out):
        return nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(inplace=True),
        )

    def on_after_batch_transfer(self, batch, dataloader_idx):
        photos, kinds = batch
        if self.trainer.training:
            photos = torch.stack([self.augment(photo[None])[0] for photo in photos])  # costs time
        return photos, kinds

    def forward(self, photos):
        return self.head(self.features(photos).mean((2, 3)))

    def training_step(self, batch, batch_idx):
        photos, kinds = batch
        loss = F.cross_entropy(self(photos), kinds)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        photos, kinds = batch
        accuracy = (self(photos).argmax(-1) == kinds).float().mean()
        self.log("val_accuracy", accuracy, batch_size=len(kinds))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(
            self.parameters(), lr=self.hparams.learning_rate * 25, momentum=0.9, weight_decay=1e-4, fused=True
        )
        steps = self.trainer.estimated_stepping_batches
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def batches(photos, sampler, size):
    return DataLoader(photos, sampler=BatchSampler(sampler, size, drop_last=False), batch_size=None)


def main():
    L.seed_everything(3)
    train, val = photograph(9600, seed=1), photograph(1200, seed=2)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=4,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(ToyClassifier(), batches(train, RandomSampler(train), 96), batches(val, SequentialSampler(val), 200))
    metrics = trainer.callback_metrics
    print(f"train loss {metrics['train_loss']:.4f}, validation accuracy {metrics['val_accuracy']:.3f}")


if __name__ == "__main__":
    main()
