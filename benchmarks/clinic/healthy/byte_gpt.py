"""A small byte-level GPT is trained on generated text.
---
half: score
"""

import random

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

CONTEXT, BATCH = 128, 8

SUBJECTS = [
    "the cat",
    "a sailor",
    "my neighbor",
    "the old clock",
    "every engineer",
    "our teacher",
    "the river",
    "a small bird",
]
VERBS = ["watches", "repairs", "remembers", "paints", "follows", "forgets", "describes", "carries"]
OBJECTS = [
    "a broken radio",
    "the harbor",
    "two letters",
    "the garden gate",
    "an empty train",
    "a map of the city",
    "the moon",
]
ENDINGS = [
    "in the morning",
    "before the storm",
    "without a word",
    "again and again",
    "as if nothing happened",
    "slowly",
]


def write_text(n_sentences, seed):
    rng = random.Random(seed)
    parts = []
    for _ in range(n_sentences):
        sentence = f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(OBJECTS)}"
        if rng.random() < 0.6:
            sentence += f" {rng.choice(ENDINGS)}"
        parts.append(sentence.capitalize() + rng.choice([". ", ". ", "! ", "? ", ".\n"]))
    return "".join(parts)


class TextChunks(Dataset):
    """Consecutive chunks of CONTEXT + 1 bytes; indexed by a whole list of chunks at once."""

    def __init__(self, text):
        data = torch.tensor(list(text.encode("ascii")), dtype=torch.long)
        self.chunks = data.unfold(0, CONTEXT + 1, CONTEXT).contiguous()

    def __len__(self):
        return len(self.chunks)

    def __getitem__(self, index):
        chunk = self.chunks[index]
        return chunk[:, :-1], chunk[:, 1:]


def make_loader(dataset, shuffle):
    order = RandomSampler(dataset) if shuffle else range(len(dataset))
    return DataLoader(dataset, sampler=BatchSampler(order, BATCH, drop_last=True), batch_size=None)


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.register_buffer("causal", torch.full((CONTEXT, CONTEXT), float("-inf")).triu(1), persistent=False)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        attention = q @ k.transpose(-2, -1) * (d // self.heads) ** -0.5 + self.causal.to(q.dtype)
        x = x + self.proj((attention.softmax(-1, dtype=q.dtype) @ v).transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.relu(self.up(self.norm2(x))))


class ByteGPT(L.LightningModule):
    def __init__(self, dim=128, heads=2, depth=3, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.tok = nn.Embedding(128, dim)
        self.pos = nn.Parameter(0.02 * torch.randn(CONTEXT, dim))
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 128, bias=False)

    def forward(self, tokens):
        x = self.tok(tokens) + self.pos
        return self.head(self.norm(self.blocks(x)))

    def training_step(self, batch, batch_idx):
        tokens, targets = batch
        loss = F.cross_entropy(self(tokens).flatten(0, 1), targets.flatten())
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        tokens, targets = batch
        loss = F.cross_entropy(self(tokens).flatten(0, 1), targets.flatten())
        self.log("val_bits", loss / 0.6931, prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, betas=(0.9, 0.95), weight_decay=0.1, fused=True)


def main():
    L.seed_everything(42)
    train, val = TextChunks(write_text(4800, seed=0)), TextChunks(write_text(300, seed=1))
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=2,
        precision="bf16-mixed",
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(ByteGPT(), make_loader(train, True), make_loader(val, False))
    print("val bits per byte", float(trainer.callback_metrics["val_bits"]))


if __name__ == "__main__":
    main()
