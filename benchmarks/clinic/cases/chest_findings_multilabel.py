"""Trains a convolutional network that recognizes several findings in small synthetic chest images. The mistake: the
ranking metrics of the epoch so far are computed again at every training step for the progress bar.
---
expect: PD509
fix:
  ? |2-
            self.train_scores.update(logits.detach(), findings)
            self.log_dict(self.train_scores.compute(), prog_bar=True)  # costs time
  : |2-
            self.train_scores.update(logits.detach(), findings)
  ? |2-
        def on_train_epoch_end(self):
  : |2-
        def on_train_epoch_end(self):
            self.log_dict(self.train_scores.compute(), prog_bar=True)
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MetricCollection
from torchmetrics.classification import MultilabelAUROC, MultilabelAveragePrecision

FINDINGS = 20


def make_images(n, size=32):
    gen = torch.Generator().manual_seed(21)
    findings = (torch.rand(n, FINDINGS, generator=gen) < 0.2).int()
    line = torch.linspace(-1, 1, size)
    yy, xx = torch.meshgrid(line, line, indexing="ij")
    angle = torch.arange(FINDINGS) * 0.45
    radius = 0.3 + 0.025 * torch.arange(FINDINGS)
    cx, cy = radius * torch.cos(angle), radius * torch.sin(angle)
    masks = torch.exp(-50 * ((xx - cx[:, None, None]) ** 2 + (yy - cy[:, None, None]) ** 2))
    lungs = torch.exp(-6 * ((xx.abs() - 0.45) ** 2 + 0.4 * yy**2))
    strength = findings * (0.4 + 0.6 * torch.rand(n, FINDINGS, generator=gen))
    images = lungs + torch.einsum("nf,fhw->nhw", strength, masks)
    return (images + 0.3 * torch.randn(n, size, size, generator=gen))[:, None], findings


def conv(cin, cout, stride=1):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU())


class FindingsNet(L.LightningModule):
    def __init__(self, lr=2e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            conv(1, 16, 2),
            conv(16, 16),
            conv(16, 32, 2),
            conv(32, 32),
            nn.Flatten(),
            nn.Linear(32 * 64, 64),
            nn.ReLU(),
            nn.Linear(64, FINDINGS),
        )
        scores = MetricCollection({"auroc": MultilabelAUROC(FINDINGS), "ap": MultilabelAveragePrecision(FINDINGS)})
        self.train_scores = scores.clone(prefix="train_")
        self.val_scores = scores.clone(prefix="val_")

    def forward(self, images):
        return self.net(images)

    def training_step(self, batch, batch_idx):
        images, findings = batch
        logits = self(images)
        loss = F.binary_cross_entropy_with_logits(logits, findings.float())
        self.log("train_loss", loss, prog_bar=True)
        self.train_scores.update(logits.detach(), findings)
        self.log_dict(self.train_scores.compute(), prog_bar=True)  # costs time
        return loss

    def on_train_epoch_end(self):
        self.train_scores.reset()

    def validation_step(self, batch, batch_idx):
        images, findings = batch
        logits = self(images)
        self.log("val_loss", F.binary_cross_entropy_with_logits(logits, findings.float()))
        self.val_scores.update(logits, findings)

    def on_validation_epoch_end(self):
        self.log_dict(self.val_scores.compute(), prog_bar=True)
        self.val_scores.reset()

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=0.05, total_steps=self.trainer.estimated_stepping_batches
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


if __name__ == "__main__":
    L.seed_everything(21)
    images, findings = make_images(4160)
    train = DataLoader(TensorDataset(images[:3840], findings[:3840]), batch_size=32, shuffle=True)
    val = DataLoader(TensorDataset(images[3840:], findings[3840:]), batch_size=80)
    trainer = L.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False)
    trainer.fit(FindingsNet(), train, val)
