"""A small fully convolutional network segments synthetic road scenes into six classes. Its head enlarges all 160
feature maps to the images' size before the 1x1 classifier, which commutes with the interpolation and could come first.
---
expect: PD335
fix:
  ? |2-
            x = F.interpolate(x, size=image.shape[-2:], mode="bilinear", align_corners=False)  # costs time
            return self.classifier(x)  # costs time
  : |2-
            x = self.classifier(x)
            return F.interpolate(x, size=image.shape[-2:], mode="bilinear", align_corners=False)
half: tune
"""

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

NUM_CLASSES = 6
SIZE = 80


def draw_scenes(count, seed):
    gen = torch.Generator().manual_seed(seed)
    rows = torch.linspace(0, 1, SIZE).view(1, SIZE, 1)
    cols = torch.linspace(0, 1, SIZE).view(1, 1, SIZE)
    masks = torch.zeros(count, SIZE, SIZE, dtype=torch.long)
    horizon = 0.3 + 0.2 * torch.rand(count, 1, 1, generator=gen)
    masks[(rows > horizon).expand_as(masks)] = 1
    centre = 0.3 + 0.4 * torch.rand(count, 1, 1, generator=gen)
    masks[(rows > horizon) & ((cols - centre).abs() < 0.6 * (rows - horizon))] = 2
    for label in range(3, NUM_CLASSES):
        y, x, r = (torch.rand(3, count, 1, 1, generator=gen) * torch.tensor([0.8, 0.8, 0.1]).view(3, 1, 1, 1)).unbind(0)
        masks[((rows - y - 0.1).abs() < r + 0.05) & ((cols - x - 0.1).abs() < r + 0.05)] = label
    palette = torch.rand(NUM_CLASSES, 3, generator=torch.Generator().manual_seed(0))
    images = palette[masks].permute(0, 3, 1, 2).contiguous()
    return TensorDataset(images + 0.15 * torch.randn(images.shape, generator=gen), masks)


def block(c_in, c_out, stride):
    return nn.Sequential(
        nn.Conv2d(c_in, c_out, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(c_out), nn.ReLU(inplace=True)
    )


class RoadFCN(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            block(3, 24, 2), block(24, 48, 2), block(48, 96, 2), block(96, 160, 1), block(160, 160, 1)
        )
        self.classifier = nn.Conv2d(160, NUM_CLASSES, 1)

    def forward(self, image):
        x = self.encoder(image.contiguous(memory_format=torch.channels_last))
        x = F.interpolate(x, size=image.shape[-2:], mode="bilinear", align_corners=False)  # costs time
        return self.classifier(x)  # costs time

    def training_step(self, batch, batch_idx):
        images, masks = batch
        loss = F.cross_entropy(self(images), masks)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        images, masks = batch
        hits = (self(images).argmax(1) == masks).float().mean()
        self.log("val_pixel_accuracy", hits, batch_size=len(images))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3, fused=True)


def batches(data, sampler, batch_size):
    return DataLoader(data, sampler=BatchSampler(sampler(data), batch_size, drop_last=False), batch_size=None)


def main():
    L.seed_everything(11)
    train, val = draw_scenes(480, seed=1), draw_scenes(32, seed=2)
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=3, logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    model = RoadFCN().to(memory_format=torch.channels_last)
    trainer.fit(model, batches(train, RandomSampler, 6), batches(val, SequentialSampler, 16))


if __name__ == "__main__":
    main()
