"""A residual MLP on a table in memory, whose batches are taken by one indexing each; metrics are computed per epoch.
---
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
from torchmetrics.classification import BinaryAccuracy


def make_applications(n):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(n, 48, generator=generator)
    risk = features[:, 0] * features[:, 1] + features[:, 2:8].tanh().sum(dim=1)
    return TensorDataset(features, (risk > 0.5).float())


class ResidualBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 2 * dim)
        self.down = nn.Linear(2 * dim, dim)

    def forward(self, x):
        return x + self.down(F.relu(self.up(self.norm(x))))


class CreditModel(L.LightningModule):
    def __init__(self, dim=96):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(48, dim), ResidualBlock(dim), ResidualBlock(dim), nn.Linear(dim, 1))
        self.accuracy = BinaryAccuracy()

    def training_step(self, batch, batch_idx):
        features, defaulted = batch
        logits = self.net(features).squeeze(1)
        loss = F.binary_cross_entropy_with_logits(logits, defaulted)
        self.accuracy.update(logits.detach(), defaulted)
        self.log("train_loss", loss)
        return loss

    def on_train_epoch_end(self):
        self.log("train_accuracy", self.accuracy.compute())
        self.accuracy.reset()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


L.seed_everything(1)
table = make_applications(102_400)
loader = DataLoader(table, batch_size=None, sampler=BatchSampler(RandomSampler(table), 1024, drop_last=True))
trainer = L.Trainer(
    accelerator="cpu",
    max_epochs=3,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(CreditModel(), loader)
