"""A small causal transformer with the fused attention and sequences of one length.
---
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

N_NOTES = 96
LENGTH = 64


def make_melodies(n):
    generator = torch.Generator().manual_seed(0)
    key = torch.randint(0, 12, (n, 1), generator=generator)
    motif = torch.randint(0, 24, (n, 8), generator=generator).repeat(1, LENGTH // 8 + 1)
    return (motif + key)[:, : LENGTH + 1] + 12


class Block(nn.Module):
    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.norm1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class MelodyModel(L.LightningModule):
    def __init__(self, dim=96, n_heads=4, n_layers=2):
        super().__init__()
        self.notes = nn.Embedding(N_NOTES, dim)
        self.positions = nn.Parameter(torch.randn(LENGTH, dim) * 0.02)
        self.blocks = nn.Sequential(*(Block(dim, n_heads) for _ in range(n_layers)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, N_NOTES)

    def training_step(self, batch, batch_idx):
        (melody,) = batch
        x = self.blocks(self.notes(melody[:, :-1]) + self.positions)
        loss = F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), melody[:, 1:].flatten())
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.trainer.estimated_stepping_batches)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


L.seed_everything(1)
loader = DataLoader(TensorDataset(make_melodies(1_920)), batch_size=16, shuffle=True)
trainer = L.Trainer(
    accelerator="cpu",
    max_epochs=2,
    gradient_clip_val=1.0,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(MelodyModel(), loader)
