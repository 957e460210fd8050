"""A small convolutional network learns to segment skin lesions; its pixel-wise average precision is followed.
The exact metric object is called on every batch, but only its value is logged, so that its list of all pixels is never
reset, and each call copies the whole growing list.
---
expect: [PD509, PD605, PD405]
half: score
fix:
  "from torchmetrics.classification import BinaryAveragePrecision": >-
    from torchmetrics.functional.classification import binary_average_precision
  "        self.train_ap = BinaryAveragePrecision()": ""
  ? |2-
            self.log("train_ap", self.train_ap(logits.detach(), masks))  # costs time
  : |2-
            self.log("train_ap", binary_average_precision(logits.detach(), masks))
"""

import tempfile

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import BinaryAveragePrecision


def make_lesions(n, size, seed):
    g = torch.Generator().manual_seed(seed)
    ys, xs = torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij")
    cx, cy = torch.rand(2, n, 1, 1, generator=g) - 0.5
    ax, ay = torch.rand(2, n, 1, 1, generator=g) * 0.4 + 0.2
    dist = ((xs - cx) / ax) ** 2 + ((ys - cy) / ay) ** 2
    masks = (dist < 1).long()
    skin = torch.tensor([0.8, 0.6, 0.5]).view(1, 3, 1, 1)
    images = skin - 0.25 * torch.exp(-dist).unsqueeze(1) + 0.15 * torch.randn(n, 3, size, size, generator=g)
    return images, masks


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True))

    def forward(self, x):
        return x + self.body(x)


class PatchSegmenter(nn.Module):
    """Works on patches of 4 x 4 pixels and spreads its output over their pixels."""

    def __init__(self, width=32, depth=2):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 4, stride=4)
        self.body = nn.Sequential(*[Residual(width) for _ in range(depth)])
        self.head = nn.Sequential(nn.Conv2d(width, 16, 1), nn.PixelShuffle(4))

    def forward(self, x):
        return self.head(self.body(self.stem(x))).squeeze(1)


class LesionSegmentation(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = PatchSegmenter().to(memory_format=torch.channels_last)
        self.train_ap = BinaryAveragePrecision()

    def dice_loss(self, logits, masks):
        prob = torch.sigmoid(logits)
        inter = (prob * masks).sum(dim=(1, 2))
        return 1 - ((2 * inter + 1) / (prob.sum(dim=(1, 2)) + masks.sum(dim=(1, 2)) + 1)).mean()

    def training_step(self, batch, batch_idx):
        images, masks = batch
        logits = self.net(images.contiguous(memory_format=torch.channels_last))
        loss = F.binary_cross_entropy_with_logits(logits, masks.float()) + self.dice_loss(logits, masks)
        self.log("train_loss", loss)
        self.log("train_ap", self.train_ap(logits.detach(), masks))  # costs time
        return loss

    def validation_step(self, batch, batch_idx):
        images, masks = batch
        logits = self.net(images.contiguous(memory_format=torch.channels_last))
        self.log("val_dice", 1 - self.dice_loss(logits, masks))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, weight_decay=1e-4)


if __name__ == "__main__":
    L.seed_everything(1)
    train = DataLoader(TensorDataset(*make_lesions(960, 64, 0)), batch_size=16, shuffle=True, drop_last=True)
    val = DataLoader(TensorDataset(*make_lesions(64, 64, 1)), batch_size=32)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=5,
        logger=CSVLogger(tempfile.mkdtemp()),
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(LesionSegmentation(), train, val)
