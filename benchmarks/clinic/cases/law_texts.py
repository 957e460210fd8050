"""A small transformer sorts paragraphs of law texts into subject areas; each batch is padded to the fixed maximum
length, though most paragraphs are short.
---
expect: PD116
fix:
  "width = MAX_LENGTH": "width = max(len(tokens) for tokens, _ in batch)"
half: score
"""

import lightning
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VOCABULARY = 4000
MAX_LENGTH = 192
AREAS = 8


class Paragraphs(Dataset):
    """Token ids of the paragraphs (0 is padding) with their subject area."""

    def __init__(self, count, seed):
        rng = np.random.default_rng(seed)
        lengths = np.clip(rng.lognormal(3.7, 0.45, count), 12, MAX_LENGTH).astype(int)
        areas = rng.integers(AREAS, size=count)
        self.paragraphs = []
        for length, area in zip(lengths, areas, strict=True):
            tokens = rng.integers(1, VOCABULARY, length)
            terms = rng.random(length) < 0.15
            tokens[terms] = 1 + area * 40 + rng.integers(40, size=int(terms.sum()))
            self.paragraphs.append((torch.from_numpy(tokens), int(area)))

    def __len__(self):
        return len(self.paragraphs)

    def __getitem__(self, index):
        return self.paragraphs[index]


def collate(batch):
    width = MAX_LENGTH
    tokens = torch.zeros(len(batch), width, dtype=torch.long)
    for row, (paragraph, _) in enumerate(batch):
        tokens[row, : len(paragraph)] = paragraph
    return tokens, torch.tensor([area for _, area in batch])


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, x, mask):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.norm2(x))


class LawTexts(lightning.LightningModule):
    def __init__(self, width=96, heads=4, depth=2):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width, padding_idx=0)
        self.places = nn.Embedding(MAX_LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.head = nn.Linear(width, AREAS)

    def forward(self, tokens):
        real = tokens != 0
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        mask = real[:, None, None, :]
        for block in self.blocks:
            x = block(x, mask)  # costs time
        weight = real.unsqueeze(-1).to(x.dtype)
        return self.head((x * weight).sum(1) / weight.sum(1))

    def training_step(self, batch, batch_idx):
        tokens, area = batch
        return F.cross_entropy(self(tokens), area)

    def validation_step(self, batch, batch_idx):
        tokens, area = batch
        accuracy = (self(tokens).argmax(1) == area).float().mean()
        self.log("val_accuracy", accuracy, batch_size=len(area))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    lightning.seed_everything(5)
    train = DataLoader(Paragraphs(648, 1), batch_size=12, shuffle=True, collate_fn=collate, drop_last=True)
    valid = DataLoader(Paragraphs(128, 2), batch_size=32, collate_fn=collate)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(LawTexts(), train, valid)
    print("val_accuracy", trainer.callback_metrics["val_accuracy"].item())
