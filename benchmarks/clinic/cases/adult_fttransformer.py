"""An FT-Transformer classifies rows of a table with numerical and categorical columns. A hook logs the gradient norm of
every single parameter at every step, a hundred self.log calls each time.
---
expect: [PD502, PD504, PD507]
fix:
  ? "        norms = grad_norm(self.backbone, norm_type=2)"
  : "        norms = grad_norm(self.backbone, norm_type=2) if self.global_step % 50 == 0 else {}"
  ? "        self.log_dict(norms)  # costs time"
  : "        self.log_dict(norms)"
half: score
"""

import tempfile

import lightning as L
import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import grad_norm
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

CARDINALITIES = {"workclass": 8, "education": 16, "marital": 7, "occupation": 14, "relationship": 6, "country": 40}
NUMERICAL = ["age", "gain", "loss", "hours", "weight"]


def make_table(n, seed):
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({c: rng.integers(0, k, n) for c, k in CARDINALITIES.items()})
    table["age"] = rng.gamma(9, 4.3, n)
    table["hours"] = rng.normal(40, 11, n).clip(1, 99)
    table["gain"] = np.where(rng.random(n) < 0.08, rng.lognormal(8, 1, n), 0.0)
    table["loss"] = np.where(rng.random(n) < 0.05, rng.lognormal(7, 0.5, n), 0.0)
    table["weight"] = rng.lognormal(12, 0.5, n)
    score = 0.15 * (table.education - 8) + 0.04 * (table.hours - 40) + 0.8 * (table.gain > 0)
    score += 0.9 * (table.marital == 2) - 0.002 * (table.age - 48) ** 2 + 0.2 * (table.occupation % 4 - 1.5)
    table["label"] = (score + rng.logistic(0, 0.5, n) > 0.3).astype(np.int64)
    return table


def to_dataset(table):
    num = table[NUMERICAL]
    num = np.log1p(num.clip(lower=0))
    num = ((num - num.mean()) / num.std()).to_numpy(dtype=np.float32)
    cat = table[list(CARDINALITIES)].to_numpy(dtype=np.int64, copy=True)
    label = table.label.to_numpy(copy=True)
    return TensorDataset(torch.from_numpy(num), torch.from_numpy(cat), torch.from_numpy(label))


def batches(dataset, size, shuffle):
    order = RandomSampler(dataset) if shuffle else range(len(dataset))
    return DataLoader(dataset, sampler=BatchSampler(order, size, drop_last=shuffle), batch_size=None)


class FTTransformer(nn.Module):
    def __init__(self, n_num, cardinalities, dim=32, heads=4, depth=4):
        super().__init__()
        self.num_weight = nn.Parameter(torch.randn(n_num, dim) * 0.1)
        self.num_bias = nn.Parameter(torch.zeros(n_num, dim))
        offsets = torch.tensor([0, *cardinalities[:-1]]).cumsum(0)
        self.register_buffer("offsets", offsets)
        self.cat = nn.Embedding(sum(cardinalities), dim)
        self.cls = nn.Parameter(torch.randn(1, 1, dim) * 0.1)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, heads, 2 * dim, 0.1, "gelu", batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.ReLU(), nn.Linear(dim, 2))

    def forward(self, num, cat):
        num = num.unsqueeze(-1) * self.num_weight + self.num_bias
        x = torch.cat([self.cls.expand(len(num), -1, -1), num, self.cat(cat + self.offsets)], dim=1)
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])


class IncomeClassifier(L.LightningModule):
    def __init__(self, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.backbone = FTTransformer(len(NUMERICAL), list(CARDINALITIES.values()))

    def training_step(self, batch, batch_idx):
        num, cat, label = batch
        loss = F.cross_entropy(self.backbone(num, cat), label)
        self.log("train_loss", loss)
        return loss

    def on_before_optimizer_step(self, optimizer):
        norms = grad_norm(self.backbone, norm_type=2)
        self.log_dict(norms)  # costs time

    def validation_step(self, batch, batch_idx):
        num, cat, label = batch
        logits = self.backbone(num, cat)
        self.log_dict(
            {"val_loss": F.cross_entropy(logits, label), "val_acc": (logits.argmax(-1) == label).float().mean()},
            prog_bar=True,
        )

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=1e-5)


def main():
    L.seed_everything(13)
    train, val = to_dataset(make_table(14_000, seed=0)), to_dataset(make_table(2_000, seed=1))
    with tempfile.TemporaryDirectory() as root:
        trainer = L.Trainer(
            accelerator="cpu",
            max_epochs=3,
            logger=CSVLogger(root),
            enable_checkpointing=False,
            enable_model_summary=False,
        )
        trainer.fit(IncomeClassifier(), batches(train, 96, True), batches(val, 500, False))
        print("val acc", float(trainer.callback_metrics["val_acc"]))


if __name__ == "__main__":
    main()
