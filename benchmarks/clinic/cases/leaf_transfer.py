r"""Transfer learning of a leaf-disease classifier on a fixed convolutional backbone; the backbone never changes, but it
still takes part in the backward pass.
---
expect: PD323
half: tune
fix:
  ? "self.backbone.eval()\n        self.classifier"
  : "self.backbone.eval().requires_grad_(False)\n        self.classifier"
"""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def conv_block(inp, out, stride):
    return nn.Sequential(
        nn.Conv2d(inp, out, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(out),
        nn.ReLU(inplace=True),
    )


def pretrained_backbone():
    layers, inp = [], 3
    for out, stride in [(24, 2), (24, 1), (48, 2), (48, 1), (96, 2), (96, 1)]:
        layers.append(conv_block(inp, out, stride))
        inp = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def leaf_images(n, classes):
    labels = torch.randint(0, classes, (n,))
    images = torch.randn(n, 3, 48, 48) * 0.5
    spots = torch.randn(classes, 3, 1, 1)
    images[:, :, 14:34, 14:34] += spots[labels]
    return TensorDataset(images, labels)


class LeafClassifier(LightningModule):
    def __init__(self, classes=8, lr=1e-3):
        super().__init__()
        self.lr = lr
        self.backbone = pretrained_backbone()
        self.backbone.eval()
        self.classifier = nn.Sequential(nn.Linear(96, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, classes))

    def on_train_epoch_start(self):
        self.backbone.eval()

    def forward(self, images):
        features = self.backbone(images)
        return self.classifier(features)

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = F.cross_entropy(self(images), labels)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.classifier.parameters(), lr=self.lr)


if __name__ == "__main__":
    seed_everything(3)
    train_loader = DataLoader(leaf_images(1200, 8), batch_size=16, shuffle=True)
    trainer = Trainer(
        max_epochs=4,
        accelerator="cpu",
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=False,
    )
    trainer.fit(LeafClassifier(), train_loader)
