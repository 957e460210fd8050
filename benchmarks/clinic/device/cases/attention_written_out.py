"""Attention over 2048 positions as softmax(q k) v, with the matrix of scores in memory.
---
expect: PD309
half: tune
fix:
  self.attend(query, key, value): nn.functional.scaled_dot_product_attention(query, key, value)
"""

import math

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader

WIDTH, HEADS = 512, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.project, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def attend(self, query, key, value):
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        return scores.softmax(dim=-1) @ value

    def forward(self, x):
        query, key, value = self.project(self.norm(x)).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = self.attend(query, key, value)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.feed(x)


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.embed, self.positions = nn.Embedding(512, WIDTH), nn.Embedding(2048, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(4)))
        self.head = nn.Linear(WIDTH, 512)

    def training_step(self, tokens, batch_idx):
        x = self.blocks(self.embed(tokens) + self.positions.weight)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), tokens.flatten())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-4, fused=True)


batches = list(torch.randint(512, (110, 4, 2048)))
loader = DataLoader(batches, batch_size=None, shuffle=True, pin_memory=True)

trainer = Trainer(
    max_epochs=3,
    accelerator="cuda",
    devices=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    precision="bf16-mixed",
)
trainer.fit(Net(), loader)
