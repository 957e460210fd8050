"""A small GPT over characters of synthetic recipes, with causal scaled dot product attention.
---
half: score
"""

import random

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

CONTEXT = 128
VERBS = ("chop", "boil", "fry", "bake", "whisk", "grill", "peel", "stir", "rinse", "drain")
FOODS = ("onions", "rice", "two eggs", "a leek", "the dough", "carrots", "cod", "lentils", "basil", "butter")
WAYS = ("gently", "for ten minutes", "until golden", "in salted water", "over high heat", "once more")


def make_recipes(steps):
    sentences = []
    for _ in range(steps):
        parts = random.choice(VERBS), random.choice(FOODS), random.choice(WAYS)
        sentences.append(" ".join(parts).capitalize() + random.choice((". ", "; ", ".\n")))
    return "".join(sentences)


class CharacterWindows(Dataset):
    """All windows of CONTEXT + 1 characters at a stride; a list of indices gives a whole batch."""

    def __init__(self, text, stride=32):
        self.alphabet = sorted(set(text))
        code = {letter: number for number, letter in enumerate(self.alphabet)}
        tokens = torch.tensor([code[letter] for letter in text])
        self.windows = tokens.unfold(0, CONTEXT + 1, stride)

    def __len__(self):
        return len(self.windows)

    def __getitem__(self, rows):
        return self.windows[rows]


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm_attention, self.norm_mlp = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        q, k, v = self.qkv(self.norm_attention(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm_mlp(x))


class CharacterGPT(L.LightningModule):
    def __init__(self, letters, dim=96, layers=2, heads=3):
        super().__init__()
        self.letter, self.position = nn.Embedding(letters, dim), nn.Embedding(CONTEXT, dim)
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, letters, bias=False)
        self.head.weight = self.letter.weight
        for embedding in (self.letter, self.position):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens):
        x = self.letter(tokens) + self.position.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))

    def training_step(self, windows, batch_idx):
        logits = self(windows[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3, weight_decay=0.01, fused=True)
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


if __name__ == "__main__":
    L.seed_everything(17)
    windows = CharacterWindows(make_recipes(1000))
    batches = BatchSampler(RandomSampler(windows), batch_size=12, drop_last=True)
    loader = DataLoader(windows, sampler=batches, batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=4,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(CharacterGPT(len(windows.alphabet)), loader)
