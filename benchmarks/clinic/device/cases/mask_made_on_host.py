"""Each step builds the attention bias of 2048 x 2048 positions on the CPU and copies it to the device.
---
expect: [PD201, PD511]
half: tune
fix:
  make_mask().to(self.device): self.mask
  self.head = nn.Linear(WIDTH, 512): |-
    self.head = nn.Linear(WIDTH, 512)
            self.register_buffer("mask", make_mask(), persistent=False)
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader

WIDTH, HEADS = 512, 8


def make_mask():
    positions = torch.arange(2048.0)
    distance = positions[:, None] - positions
    return (-distance / 64).masked_fill(distance < 0, -torch.inf)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.project, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x, mask):
        query, key, value = self.project(self.norm(x)).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.feed(x)


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(512, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(WIDTH, 512)

    def forward(self, tokens):
        mask = make_mask().to(self.device)  # costs time
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x)

    def training_step(self, tokens, batch_idx):
        return nn.functional.cross_entropy(self(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-4, fused=True)


batches = list(torch.randint(512, (150, 4, 2048 + 1)))
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
