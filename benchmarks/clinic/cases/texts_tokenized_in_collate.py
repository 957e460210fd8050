"""Texts become tokens, word by word, when a batch is put together.
---
expect: PD108
half: tune
fix:
  torch.stack([tokens_of(text): torch.stack([known[text]
"""

import random
import re

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader

WORD = re.compile(r"[a-z]+|[.,]")


def tokens_of(text):
    return torch.tensor([sum(map(ord, word)) % 500 for word in WORD.findall(text.lower())][:120])  # costs time


def as_batch(texts):
    return torch.stack([tokens_of(text) for text in texts])


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.table, self.last = nn.Embedding(500, 128), nn.Linear(128, 1)
        self.middle = nn.Linear(128, 128)

    def training_step(self, batch, batch_idx):
        hidden = self.table(batch)
        for _ in range(3):
            hidden = nn.functional.gelu(self.middle(hidden))
        return self.last(hidden).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


words = ["loss", "gradient", "tensor", "the", "of", "batch", "epoch,", "and.", "Learning", "rate"]
texts = [" ".join(random.choices(words, k=130)) for _ in range(640)]
known = {text: tokens_of(text) for text in texts}
loader = DataLoader(texts, batch_size=32, shuffle=True, collate_fn=as_batch)

trainer = Trainer(
    max_epochs=8,
    accelerator="cpu",
    precision="bf16-mixed",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
