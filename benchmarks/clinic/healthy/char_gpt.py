"""Small causal transformer language model over characters with fused attention, well configured.
---
half: score
"""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, Dataset

CHARS, CONTEXT = 64, 64


class Text(Dataset):
    def __init__(self, n):
        step = torch.randint(1, 5, (n,))
        text = step.cumsum(0) % CHARS
        self.windows = text.unfold(0, CONTEXT + 1, CONTEXT // 2)

    def __len__(self):
        return len(self.windows)

    def __getitem__(self, i):
        return self.windows[i]


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(b, t, w))
        return x + self.mlp(self.norm2(x))


class CharGPT(LightningModule):
    def __init__(self, width=128, depth=2, heads=4):
        super().__init__()
        self.embed = nn.Embedding(CHARS, width)
        self.position = nn.Parameter(torch.randn(CONTEXT, width) * 0.02)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(depth)), nn.LayerNorm(width))
        self.head = nn.Linear(width, CHARS)

    def training_step(self, batch, batch_idx):
        inputs, targets = batch[:, :-1], batch[:, 1:]
        logits = self.head(self.layers(self.embed(inputs) + self.position))
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    seed_everything(12)
    loader = DataLoader(Text(22_000), batch_size=8, shuffle=True)
    trainer = Trainer(
        max_epochs=4,
        accelerator="cpu",
        gradient_clip_val=1.0,
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=False,
    )
    trainer.fit(CharGPT(), loader)
