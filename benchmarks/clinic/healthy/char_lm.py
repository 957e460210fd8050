"""A character-level transformer language model on a synthetic text held as one tensor.
---
half: score
"""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

VOCAB, CONTEXT = 96, 64


class TextWindows(Dataset):
    """Takes a list of start positions and returns a whole batch of windows."""

    def __init__(self, text):
        self.text = text
        self.offsets = torch.arange(CONTEXT + 1)

    def __len__(self):
        return len(self.text) - CONTEXT

    def __getitem__(self, starts):
        window = self.text[torch.as_tensor(starts)[:, None] + self.offsets]
        return window[:, :-1], window[:, 1:]


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.norm2(x))


class CharLM(LightningModule):
    def __init__(self, dim=128, depth=2, heads=4):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.position = nn.Parameter(0.02 * torch.randn(CONTEXT, dim))
        self.blocks = nn.Sequential(*[Block(dim, heads) for _ in range(depth)])
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, tokens):
        return self.head(self.blocks(self.embed(tokens) + self.position))

    def training_step(self, batch, batch_idx):
        tokens, targets = batch
        loss = F.cross_entropy(self(tokens).flatten(0, 1), targets.flatten())
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    seed_everything(0)
    steps = torch.randint(0, 4, (40_000,))
    text = (steps.cumsum(0) * 7) % VOCAB
    windows = TextWindows(text)
    starts = BatchSampler(RandomSampler(windows, num_samples=75 * 12), batch_size=12, drop_last=True)
    loader = DataLoader(windows, sampler=starts, batch_size=None)
    trainer = Trainer(
        max_epochs=4,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(CharLM(), loader)
