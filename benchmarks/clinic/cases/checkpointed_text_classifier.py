"""A small Transformer classifies sequences, with activation checkpointing in each block, though memory is plentiful.
---
expect: PD332
half: tune
fix:
  "x = checkpoint(block, x, use_reentrant=False)": "x = block(x)"
"""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

WORDS, LENGTH, WIDTH, CLASSES = 2000, 48, 128, 6


def make_texts(n=1200):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(CLASSES, (n,), generator=generator)
    texts = torch.randint(WORDS, (n, LENGTH), generator=generator)
    is_topic = torch.rand(n, LENGTH, generator=generator) < 0.3
    return TensorDataset(torch.where(is_topic, 7 * labels[:, None], texts), labels)


class Classifier(LightningModule):
    def __init__(self, n_blocks=4):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(n_blocks)
        )
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, texts):
        x = self.embedding(texts)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x.mean(1))

    def training_step(self, batch, batch_idx):
        texts, labels = batch
        return F.cross_entropy(self(texts), labels)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-4, fused=True)


if __name__ == "__main__":
    seed_everything(0)
    loader = DataLoader(make_texts(), batch_size=8, shuffle=True)
    trainer = Trainer(accelerator="cpu", max_epochs=2, logger=False, enable_checkpointing=False,
                      enable_progress_bar=False)  # fmt: skip
    trainer.fit(Classifier(), loader)
