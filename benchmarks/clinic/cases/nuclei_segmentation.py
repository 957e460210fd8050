"""Trains a small encoder-decoder that labels every pixel of fluorescence microscopy tiles as background, cytoplasm,
nucleus or debris, on synthetic tiles in memory. The decoder upsamples all 64 feature channels to the full resolution
before the 1x1 classification; the 1x1 convolution commutes with the interpolation, so classify at the low resolution
and upsample the four class maps.
---
expect: PD335
fix:
  ? |2-
            features = F.interpolate(features, size=images.shape[-2:], mode="bilinear")  # costs time
            return self.classifier(features)
  : |2-
            logits = self.classifier(features)
            return F.interpolate(logits, size=images.shape[-2:], mode="bilinear")
half: score
"""

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

TILE = 96
CLASSES = ("background", "cytoplasm", "nucleus", "debris")


def render_tiles(n_tiles, generator):
    """Draws elliptic cells with a brighter nucleus and a few bright specks; returns images and label maps."""
    yy, xx = torch.meshgrid(torch.arange(TILE), torch.arange(TILE), indexing="ij")
    images = torch.full((n_tiles, TILE, TILE), 0.08)
    labels = torch.zeros(n_tiles, TILE, TILE, dtype=torch.long)
    for i in range(n_tiles):
        for _ in range(6):
            cy, cx = (torch.rand(2, generator=generator) * TILE).tolist()
            ry, rx = (torch.rand(2, generator=generator) * 8 + 8).tolist()
            d = ((yy - cy) / ry) ** 2 + ((xx - cx) / rx) ** 2
            images[i][d < 1] = 0.35
            labels[i][d < 1] = 1
            images[i][d < 0.25] = 0.75
            labels[i][d < 0.25] = 2
        specks = torch.randint(0, TILE, (2, 8), generator=generator)
        images[i][specks[0], specks[1]] = 1.0
        labels[i][specks[0], specks[1]] = 3
    images += 0.05 * torch.randn(images.shape, generator=generator)
    return images.unsqueeze(1), labels


class TileDataset(Dataset):
    def __init__(self, n_tiles, seed):
        self.images, self.labels = render_tiles(n_tiles, torch.Generator().manual_seed(seed))

    def __len__(self):
        return len(self.images)

    def __getitems__(self, indices):
        indices = torch.as_tensor(indices)
        return self.images[indices], self.labels[indices]


class SegmentationNet(nn.Module):
    def __init__(self, width=64, n_classes=4):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, 32, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(32, width, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        self.context = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=2, dilation=2),
            nn.ReLU(),
        )
        self.classifier = nn.Conv2d(width, n_classes, 1)

    def forward(self, images):
        features = self.stem(images)
        features = features + self.context(features)
        features = F.interpolate(features, size=images.shape[-2:], mode="bilinear")  # costs time
        return self.classifier(features)


class NucleiSegmenter(L.LightningModule):
    def __init__(self, lr=2e-3):
        super().__init__()
        self.lr = lr
        self.net = SegmentationNet()
        self.register_buffer("class_weights", torch.tensor([0.5, 1.0, 1.5, 3.0]))

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = F.cross_entropy(self.net(images), labels, weight=self.class_weights)
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(images))
        return loss

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        hits = (self.net(images).argmax(1) == labels).float().mean()
        self.log("pixel_accuracy", hits, batch_size=len(images))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr, fused=True)


def main():
    L.seed_everything(7)
    train = DataLoader(TileDataset(320, seed=1), batch_size=4, shuffle=True, drop_last=True, collate_fn=tuple)
    val = DataLoader(TileDataset(32, seed=2), batch_size=16, collate_fn=tuple)
    trainer = L.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(NucleiSegmenter(), train, val)
    print({name: round(float(value), 4) for name, value in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
