"""Trains a small causal transformer as a byte-level language model on generated recipe-like text.
---
half: score
"""

import random

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

CONTEXT, BATCH = 96, 12


def write_recipes(sentences):
    rng = random.Random(3)
    verbs = ["chop", "stir", "simmer", "fold", "whisk", "roast", "drain", "season"]
    things = ["the onions", "two carrots", "a cup of rice", "the batter", "some butter", "fresh basil", "the beans"]
    places = ["in a large pan", "over low heat", "until golden", "with a pinch of salt", "for ten minutes"]
    parts = [f"{rng.choice(verbs)} {rng.choice(things)} {rng.choice(places)}" for _ in range(sentences)]
    return torch.frombuffer(bytearray(". ".join(parts).encode()), dtype=torch.uint8).long()


class RandomChunks(IterableDataset):
    """Draws whole batches of random chunks from one long byte stream."""

    def __init__(self, stream, batches):
        self.chunks = stream.unfold(0, CONTEXT + 1, 1)
        self.batches = batches

    def __len__(self):
        return self.batches

    def __iter__(self):
        for _ in range(self.batches):
            rows = self.chunks[torch.randint(len(self.chunks), (BATCH,))]
            yield rows[:, :-1], rows[:, 1:]


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, w = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, w // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, w))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class ByteModel(L.LightningModule):
    def __init__(self, width=128, depth=2, heads=4, peak=2e-3):
        super().__init__()
        self.peak = peak
        self.token = nn.Embedding(128, width)
        self.place = nn.Parameter(0.02 * torch.randn(CONTEXT, width))
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 128, bias=False)
        self.head.weight = self.token.weight
        nn.init.normal_(self.token.weight, std=0.02)

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.token(tokens) + self.place)))

    def training_step(self, batch, batch_idx):
        tokens, following = batch
        loss = F.cross_entropy(self(tokens).flatten(0, 1), following.flatten())
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.peak, betas=(0.9, 0.98), fused=True)
        total = int(self.trainer.estimated_stepping_batches)
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.peak, total_steps=total)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": cycle, "interval": "step"}}


def main():
    L.seed_everything(3)
    loader = DataLoader(RandomChunks(write_recipes(4000), 150), batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        max_epochs=2,
        gradient_clip_val=1.0,
    )
    trainer.fit(ByteModel(), loader)
    print("train_loss", float(trainer.callback_metrics["train_loss"]))


if __name__ == "__main__":
    main()
