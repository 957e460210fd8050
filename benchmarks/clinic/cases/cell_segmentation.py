"""Cell segmentation with a small U-Net; the images and masks are kept in multiprocessing.Manager lists, so each access
asks another process.
---
expect: PD107
half: tune
fix:
  ? "        manager = Manager()"
  : ""
  ? "        self.images = manager.list(images)"
  : "        self.images = list(images)"
  ? "        self.masks = manager.list(masks)"
  : "        self.masks = list(masks)"
"""

from multiprocessing import Manager

import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, Dataset


def draw_cells(n, size=24):
    rng = np.random.default_rng(2)
    yy, xx = np.mgrid[:size, :size]
    centre = rng.uniform(8, size - 8, size=(n, 2, 1, 1))
    radius = rng.uniform(3, 6, size=(n, 1, 1))
    masks = ((yy - centre[:, 0]) ** 2 + (xx - centre[:, 1]) ** 2 < radius**2).astype(np.float32)
    images = masks + 0.5 * rng.standard_normal(masks.shape, dtype=np.float32)
    return images[:, None], masks[:, None]


class CellImages(Dataset):
    def __init__(self, images, masks):
        manager = Manager()
        self.images = manager.list(images)
        self.masks = manager.list(masks)
        self.count = len(images)

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        pasted = np.random.randint(self.count)
        image = np.maximum(self.images[i], self.images[pasted])  # costs time
        mask = np.maximum(self.masks[i], self.masks[pasted])  # costs time
        if np.random.rand() < 0.5:
            image, mask = image[..., ::-1].copy(), mask[..., ::-1].copy()
        return image, mask


def double_conv(inp, out):
    return nn.Sequential(
        nn.Conv2d(inp, out, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(out, out, 3, padding=1),
        nn.ReLU(inplace=True),
    )


class TinyUNet(LightningModule):
    def __init__(self, width=6):
        super().__init__()
        self.down1 = double_conv(1, width)
        self.down2 = double_conv(width, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.merge = double_conv(2 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        return self.out(self.merge(torch.cat([a, self.up(b)], dim=1)))

    def training_step(self, batch, batch_idx):
        image, mask = batch
        logits = self(image)
        loss = F.binary_cross_entropy_with_logits(logits, mask)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    seed_everything(2)
    loader = DataLoader(CellImages(*draw_cells(3200)), batch_size=32, shuffle=True)
    trainer = Trainer(
        max_epochs=4,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(TinyUNet(), loader)
