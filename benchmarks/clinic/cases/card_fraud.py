r"""Fraud detection on transaction tables with an MLP and a running AUROC; the AUROC over everything seen in the epoch
is computed again at each step.
---
expect: PD509
half: score
fix:
  ? "self.log(\"train_auroc\", self.train_auroc.compute(), prog_bar=True)  # costs time"
  : "self.log(\"train_auroc\", self.train_auroc, on_step=False, on_epoch=True, prog_bar=True)"
"""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
from torchmetrics.classification import BinaryAUROC

COLUMNS = 64


def transactions(n):
    x = torch.randn(n, COLUMNS)
    weight = torch.randn(COLUMNS) / COLUMNS**0.5
    risk = x @ weight + 0.5 * x[:, 0] * x[:, 1] - 1.5
    fraud = (torch.sigmoid(3 * risk) > torch.rand(n)).long()
    return x, fraud


def loader_for(x, fraud, batch_size, shuffle):
    dataset = TensorDataset(x, fraud)
    order = RandomSampler(dataset) if shuffle else range(len(dataset))
    return DataLoader(dataset, sampler=BatchSampler(order, batch_size, drop_last=False), batch_size=None)


class FraudModel(LightningModule):
    def __init__(self, width=256):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(COLUMNS, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Linear(width, 1),
        )
        self.train_auroc = BinaryAUROC()
        self.val_auroc = BinaryAUROC()

    def forward(self, x):
        return self.net(x).squeeze(-1)

    def training_step(self, batch, batch_idx):
        x, fraud = batch
        logits = self(x)
        loss = F.binary_cross_entropy_with_logits(logits, fraud.float())
        self.train_auroc.update(logits.detach().sigmoid(), fraud)
        self.log("train_loss", loss)
        self.log("train_auroc", self.train_auroc.compute(), prog_bar=True)  # costs time
        return loss

    def on_train_epoch_start(self):
        self.train_auroc.reset()

    def validation_step(self, batch, batch_idx):
        x, fraud = batch
        logits = self(x)
        self.val_auroc.update(logits.sigmoid(), fraud)
        self.log("val_auroc", self.val_auroc)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    seed_everything(9)
    x, fraud = transactions(64_000)
    train_loader = loader_for(x[:60_000], fraud[:60_000], 256, shuffle=True)
    val_loader = loader_for(x[60_000:], fraud[60_000:], 1000, shuffle=False)
    trainer = Trainer(
        max_epochs=4,
        accelerator="cpu",
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=False,
    )
    trainer.fit(FraudModel(), train_loader, val_loader)
