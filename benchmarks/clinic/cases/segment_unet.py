"""Training of a small U-Net that segments blobs in images; the whole validation set is run after every few training
batches.
---
expect: PD601
half: score
fix:
  ? "val_check_interval=5,"
  : "val_check_interval=1.0,"
"""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningDataModule, LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


def make_blobs(n, size=32):
    grid = torch.arange(size).float()
    centre = torch.randint(8, size - 8, (n, 2)).float()
    radius = torch.randint(3, 8, (n, 1, 1)).float()
    dy = (grid[None, :, None] - centre[:, :1, None]) ** 2
    dx = (grid[None, None, :] - centre[:, 1:, None]) ** 2
    mask = ((dy + dx) < radius**2).float().unsqueeze(1)
    return mask + 0.6 * torch.randn(n, 1, size, size), mask


class BlobData(LightningDataModule):
    def setup(self, stage):
        images, masks = make_blobs(720)
        parts = random_split(TensorDataset(images, masks), [600, 120])
        self.train_set, self.val_set = parts

    def train_dataloader(self):
        return DataLoader(self.train_set, batch_size=8, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val_set, batch_size=24)


def double_conv(inp, out):
    return nn.Sequential(
        nn.Conv2d(inp, out, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(out, out, 3, padding=1),
        nn.ReLU(inplace=True),
    )


class UNet(LightningModule):
    def __init__(self, width=8):
        super().__init__()
        self.down1 = double_conv(1, width)
        self.down2 = double_conv(width, 2 * width)
        self.bottom = double_conv(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.merge2 = double_conv(4 * width, 2 * width)
        self.up1 = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.merge1 = double_conv(2 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.bottom(F.max_pool2d(b, 2))
        b = self.merge2(torch.cat([self.up2(c), b], 1))
        a = self.merge1(torch.cat([self.up1(b), a], 1))
        return self.out(a)

    def training_step(self, batch, batch_idx):
        image, mask = batch
        loss = F.binary_cross_entropy_with_logits(self(image), mask)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        image, mask = batch
        logits = self(image)
        hit = ((logits > 0) & (mask > 0)).sum()
        self.log("val_loss", F.binary_cross_entropy_with_logits(logits, mask))
        self.log("val_dice", 2 * hit / ((logits > 0).sum() + mask.sum() + 1))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    seed_everything(11)
    trainer = Trainer(
        max_epochs=4,
        accelerator="cpu",
        val_check_interval=5,
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=False,
    )
    trainer.fit(UNet(), BlobData())
