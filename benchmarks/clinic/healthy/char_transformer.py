"""Character-level language model: a small causal Transformer with fused attention, on windows of one long token tensor.
---
half: score
"""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, Dataset

N_CHARS = 64
CONTEXT = 64


class Windows(Dataset):
    def __init__(self, n_windows=960):
        gen = torch.Generator().manual_seed(23)
        steps = torch.randint(1, 4, (n_windows * CONTEXT + 1,), generator=gen)
        self.text = steps.cumsum(0) % N_CHARS
        self.n_windows = n_windows

    def __len__(self):
        return self.n_windows

    def __getitem__(self, i):
        return self.text[i * CONTEXT : (i + 1) * CONTEXT + 1]


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.norm2(x))


class CharLM(LightningModule):
    def __init__(self, dim=64, heads=2, blocks=3):
        super().__init__()
        self.chars = nn.Embedding(N_CHARS, dim)
        self.positions = nn.Parameter(torch.zeros(CONTEXT, dim))
        self.blocks = nn.Sequential(*[Block(dim, heads) for _ in range(blocks)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, N_CHARS)

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.chars(tokens) + self.positions)))

    def training_step(self, batch, batch_idx):
        logits = self(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    seed_everything(29)
    loader = DataLoader(Windows(), batch_size=10, shuffle=True)
    trainer = Trainer(
        accelerator="cpu", max_epochs=4, enable_progress_bar=False, enable_checkpointing=False, logger=False
    )
    trainer.fit(CharLM(), loader)
