"""A causal transformer with fused attention, in float32.
---
expect: PD301
also: {PD302: "TF32 makes the same matrix multiplications faster, by less"}
half: tune
with:
- precision-bf16
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader

WIDTH, HEADS = 768, 12


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.project, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x):
        query, key, value = self.project(self.norm(x)).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.feed(x)


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.embed, self.positions = nn.Embedding(4096, WIDTH), nn.Embedding(512, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(6)))
        self.head = nn.Linear(WIDTH, 4096)

    def training_step(self, tokens, batch_idx):
        x = self.embed(tokens[:, :-1]) + self.positions.weight
        x = self.blocks(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), tokens[:, 1:].flatten())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-4, fused=True)


batches = list(torch.randint(4096, (100, 8, 512 + 1)))
loader = DataLoader(batches, batch_size=None, shuffle=True, pin_memory=True)

trainer = Trainer(
    max_epochs=3,
    accelerator="cuda",
    devices=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
