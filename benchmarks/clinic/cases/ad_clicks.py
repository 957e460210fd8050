"""Predicts clicks on advertisements from a table of categorical and numeric columns with an MLP on embeddings, and
follows the AUROC of the training data. The mistake: the AUROC of the whole epoch so far is computed in every step.
---
expect: PD509
fix:
  ? |2
            self.log("train_auroc", self.train_auroc.compute(), prog_bar=True)  # costs time
            return loss
  : |2
            return loss
  ? |2
        def on_train_epoch_end(self):
  : |2
        def on_train_epoch_end(self):
            self.log("train_auroc", self.train_auroc.compute(), prog_bar=True)
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset
from torchmetrics.classification import BinaryAUROC

CARDINALITIES = [50, 200, 1000, 24, 7, 300]
NUMERIC = 20


def make_table(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    columns = [torch.randint(0, size, (rows,), generator=generator) for size in CARDINALITIES]
    categories = torch.stack(columns, 1)
    numbers = torch.randn(rows, NUMERIC, generator=generator)
    score = numbers[:, 0] * numbers[:, 1] + 0.5 * numbers[:, 2] + torch.sin(categories[:, 0].float())
    clicks = (torch.sigmoid(score - 1.5) > torch.rand(rows, generator=generator)).float()
    return TensorDataset(categories, numbers, clicks)


def loader(table, batch_size, shuffle):
    sampler = RandomSampler(table) if shuffle else SequentialSampler(table)
    return DataLoader(table, sampler=BatchSampler(sampler, batch_size, drop_last=False), batch_size=None)


class ClickModel(L.LightningModule):
    def __init__(self, width=96):
        super().__init__()
        offsets = torch.tensor([0, *CARDINALITIES[:-1]]).cumsum(0)
        self.register_buffer("offsets", offsets)
        self.embed = nn.Embedding(sum(CARDINALITIES), 8)
        self.mlp = nn.Sequential(
            nn.Linear(8 * len(CARDINALITIES) + NUMERIC, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 1),
        )
        self.train_auroc = BinaryAUROC()
        self.val_auroc = BinaryAUROC()

    def forward(self, categories, numbers):
        embedded = self.embed(categories + self.offsets).flatten(1)
        return self.mlp(torch.cat([embedded, numbers], 1)).squeeze(1)

    def training_step(self, batch, batch_idx):
        categories, numbers, clicks = batch
        logits = self(categories, numbers)
        loss = F.binary_cross_entropy_with_logits(logits, clicks)
        self.log("train_loss", loss)
        self.train_auroc.update(logits.detach().sigmoid(), clicks.int())
        self.log("train_auroc", self.train_auroc.compute(), prog_bar=True)  # costs time
        return loss

    def on_train_epoch_end(self):
        self.train_auroc.reset()

    def validation_step(self, batch, batch_idx):
        categories, numbers, clicks = batch
        logits = self(categories, numbers)
        self.val_auroc.update(logits.sigmoid(), clicks.int())
        self.log("val_loss", F.binary_cross_entropy_with_logits(logits, clicks))
        self.log("val_auroc", self.val_auroc, on_epoch=True, prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3, fused=True)


def main():
    L.seed_everything(3)
    train, val = make_table(300_000, 0), make_table(20_000, 1)
    trainer = L.Trainer(accelerator="cpu", max_epochs=2, enable_checkpointing=False)
    trainer.fit(ClickModel(), loader(train, 2048, True), loader(val, 4096, False))


if __name__ == "__main__":
    main()
