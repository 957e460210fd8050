"""Each batch is padded to its longest text, and a few texts are ten times as long as the others.
---
expect: PD116
half: tune
fix:
  "random.sample(range(len(texts)), len(texts))": "sorted(range(len(texts)), key=lambda n: len(texts[n]))"
"""

import random

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(1000, 64, padding_idx=0)
        self.encoder = nn.GRU(64, 96, batch_first=True)
        self.last = nn.Linear(96, 1)

    def training_step(self, batch, batch_idx):
        hidden, _ = self.encoder(self.table(batch))
        is_word = (batch != 0).unsqueeze(2)
        return ((self.last(hidden) * is_word).sum() / is_word.sum()).square()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


def padded(texts):
    return pad_sequence(texts, batch_first=True)


texts = [torch.randint(1, 1000, (160 if n % 12 == 0 else random.randint(10, 30),)) for n in range(960)]
order = random.sample(range(len(texts)), len(texts))
batches = [order[start : start + 16] for start in range(0, len(order), 16)]
random.shuffle(batches)
loader = DataLoader(texts, batch_sampler=batches, collate_fn=padded)

trainer = Trainer(
    max_epochs=3,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
