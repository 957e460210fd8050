"""The attention layers return attention weights that nobody reads, which rules out the fused attention kernel.
---
expect: [PD309, PD333]
half: tune
fix:
  'attended, _ = self.attention(h, h, h)': 'attended, _ = self.attention(h, h, h, need_weights=False)'
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

LENGTH = 768
PATCH = 2
N_RHYTHMS = 6


def make_heartbeats(n):
    generator = torch.Generator().manual_seed(0)
    rhythms = torch.randint(0, N_RHYTHMS, (n,), generator=generator)
    time = torch.arange(LENGTH) / LENGTH
    waves = torch.sin(2 * torch.pi * (5 + 3 * rhythms[:, None]) * time) ** 9
    return waves + 0.3 * torch.randn(n, LENGTH, generator=generator), rhythms


class Block(nn.Module):
    def __init__(self, dim, n_heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attention = nn.MultiheadAttention(dim, n_heads, batch_first=True)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        h = self.norm1(x)
        attended, _ = self.attention(h, h, h)
        x = x + attended
        return x + self.mlp(self.norm2(x))


class RhythmClassifier(L.LightningModule):
    def __init__(self, dim=32, n_heads=4):
        super().__init__()
        self.embed = nn.Linear(PATCH, dim)
        self.positions = nn.Parameter(torch.randn(LENGTH // PATCH, dim) * 0.02)
        self.blocks = nn.Sequential(Block(dim, n_heads), Block(dim, n_heads))
        self.head = nn.Linear(dim, N_RHYTHMS)

    def training_step(self, batch, batch_idx):
        waves, rhythms = batch
        x = self.embed(waves.unflatten(1, (-1, PATCH))) + self.positions
        loss = F.cross_entropy(self.head(self.blocks(x).mean(dim=1)), rhythms)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


L.seed_everything(1)
loader = DataLoader(TensorDataset(*make_heartbeats(320)), batch_size=2, shuffle=True)
trainer = L.Trainer(
    accelerator="cpu",
    max_epochs=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(RhythmClassifier(), loader)
