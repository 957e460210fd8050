"""Segmentation of cell nuclei in synthetic microscope tiles with a small U-Net, validated by IoU each epoch.
---
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

SIZE, NUCLEI = 48, 5


def make_tiles(count):
    """Elliptic nuclei on an uneven background with noise; images as uint8, masks as bool."""
    grid = torch.arange(SIZE, dtype=torch.float32)
    centre = torch.rand(count, NUCLEI, 2) * SIZE
    radius = 4 + 5 * torch.rand(count, NUCLEI, 2)
    dy, dx = ((grid - centre[..., axis, None]) / radius[..., axis, None] for axis in (0, 1))
    distance = dy.square()[..., :, None] + dx.square()[..., None, :]
    masks = (distance < 1).any(1, keepdim=True)
    slope = torch.rand(count, 1, 1, 1) * grid / SIZE
    images = 60 + 60 * masks + 50 * slope + 25 * torch.randn(count, 1, SIZE, SIZE)
    return TensorDataset(images.clamp(0, 255).to(torch.uint8), masks)


def double_conv(inputs, outputs):
    layers = []
    for channels in (inputs, outputs):
        layers += [nn.Conv2d(channels, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(True)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.enter = double_conv(1, width)
        self.down1 = double_conv(width, 2 * width)
        self.down2 = double_conv(2 * width, 4 * width)
        self.rise2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.up2 = double_conv(4 * width, 2 * width)
        self.rise1 = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.up1 = double_conv(2 * width, width)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        full = self.enter(x)
        half = self.down1(F.max_pool2d(full, 2))
        x = self.down2(F.max_pool2d(half, 2))
        x = self.up2(torch.cat([self.rise2(x), half], dim=1))
        x = self.up1(torch.cat([self.rise1(x), full], dim=1))
        return self.head(x)


class NucleiSegmenter(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = UNet().to(memory_format=torch.channels_last)

    def forward(self, images):
        return self.net(images.to(torch.float32, memory_format=torch.channels_last).sub_(100).div_(50))

    def training_step(self, batch, batch_idx):
        images, masks = batch
        axes = [axis for axis in (2, 3) if torch.rand(()) < 0.5]
        images, target = images.flip(axes), masks.flip(axes).float()
        logits = self(images)
        probability = logits.sigmoid()
        overlap = (probability * target).sum((1, 2, 3))
        dice = (2 * overlap + 1) / (probability.sum((1, 2, 3)) + target.sum((1, 2, 3)) + 1)
        loss = F.binary_cross_entropy_with_logits(logits, target) + 1 - dice.mean()
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        images, masks = batch
        found = self(images) > 0
        iou = (found & masks).sum((1, 2, 3)) / (found | masks).sum((1, 2, 3)).clamp(min=1)
        self.log("val_iou", iou.mean(), batch_size=len(images))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3, fused=True)


def make_loader(tiles, sampler, batch_size):
    return DataLoader(tiles, sampler=BatchSampler(sampler(tiles), batch_size, drop_last=False), batch_size=None)


if __name__ == "__main__":
    L.seed_everything(29)
    train, valid = make_tiles(512), make_tiles(64)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(NucleiSegmenter(), make_loader(train, RandomSampler, 8), make_loader(valid, SequentialSampler, 16))
