"""Trains a new classification head for leaf diseases on a convolutional backbone that stays as it was pretrained. The
mistake: only the head is given to the optimizer, but autograd still runs through the whole backbone.
---
expect: PD323
fix:
  ? "        features = self.backbone(images)"
  : |2-
            with torch.no_grad():
                features = self.backbone(images)
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy


def make_leaves(n, n_classes, size=32):
    gen = torch.Generator().manual_seed(3)
    labels = torch.randint(n_classes, (n,), generator=gen)
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij")
    freq = (2 + labels.float())[:, None, None]
    phase = torch.rand(n, 1, 1, generator=gen) * 6.28
    spots = torch.sin(freq * 2 * xx + phase) * torch.sin(freq * yy - phase)
    leaf = (xx**2 + 2 * yy**2 < 0.8).float()
    tint = torch.tensor([0.3, 0.7, 0.2])[None, :, None, None]
    images = tint * leaf + 0.3 * (spots * leaf)[:, None]
    return images + 0.1 * torch.randn(n, 3, size, size, generator=gen), labels


class Residual(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(8, cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(8, cout)
        self.skip = nn.Conv2d(cin, cout, 1, stride, bias=False)

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.skip(x))


def pretrained_backbone():
    torch.manual_seed(1234)  # stands for the download of the weights
    return nn.Sequential(
        nn.Conv2d(3, 24, 3, 1, 1, bias=False),
        nn.GroupNorm(8, 24),
        nn.ReLU(),
        Residual(24, 32, 2),
        Residual(32, 64, 2),
        Residual(64, 96, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


class LeafClassifier(L.LightningModule):
    def __init__(self, n_classes=10, lr=3e-3):
        super().__init__()
        self.save_hyperparameters()
        self.backbone = pretrained_backbone()
        self.head = nn.Sequential(nn.Linear(96, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, n_classes))
        self.val_acc = MulticlassAccuracy(n_classes)

    def forward(self, images):
        features = self.backbone(images)
        return self.head(features)

    def augment(self, images):
        if torch.rand(()) < 0.5:
            images = images.flip(-1)
        dy, dx = torch.randint(-3, 4, (2,)).tolist()
        return images.roll((dy, dx), dims=(-2, -1)) * (0.8 + 0.4 * torch.rand(len(images), 1, 1, 1))

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = F.cross_entropy(self(self.augment(images)), labels)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        self.val_acc.update(self(images), labels)
        self.log("val_acc", self.val_acc, prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.head.parameters(), lr=self.hparams.lr, weight_decay=1e-4)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=self.trainer.max_epochs)
        return [optimizer], [schedule]


if __name__ == "__main__":
    L.seed_everything(7)
    images, labels = make_leaves(940, 10)
    train = DataLoader(TensorDataset(images[:800], labels[:800]), batch_size=20, shuffle=True, drop_last=True)
    val = DataLoader(TensorDataset(images[800:], labels[800:]), batch_size=70)
    trainer = L.Trainer(max_epochs=4, accelerator="cpu", logger=False, enable_checkpointing=False)
    trainer.fit(LeafClassifier(), train, val)
