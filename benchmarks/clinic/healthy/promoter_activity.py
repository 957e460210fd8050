"""Trains a small transformer that predicts the activity of synthetic promoter sequences from their 6-mers (non-
overlapping tokens), with planted motifs whose distance matters.
---
half: score
"""

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

KMER = 6
TOKENS = 64
VOCABULARY = 4**KMER


class PromoterLibrary(Dataset):
    """Random sequences as 6-mer tokens; two motifs raise the activity, more so if they are close to each other."""

    def __init__(self, n_promoters, seed):
        gen = torch.Generator().manual_seed(seed)
        bases = torch.randint(0, 4, (n_promoters, TOKENS, KMER), generator=gen)
        self.kmers = (bases * 4 ** torch.arange(KMER)).sum(dim=-1)
        sites = torch.randint(0, TOKENS, (n_promoters, 2), generator=gen)
        present = torch.rand(n_promoters, 2, generator=gen) < 0.6
        rows = torch.arange(n_promoters)
        for motif, kmer in enumerate((731, 2950)):
            chosen = present[:, motif]
            self.kmers[rows[chosen], sites[chosen, motif]] = kmer
        distance = (sites[:, 0] - sites[:, 1]).abs()
        synergy = present.all(dim=1) * torch.exp(-distance / 12)
        self.activity = present.float().sum(dim=1) + 2 * synergy + 0.1 * torch.randn(n_promoters, generator=gen)

    def __len__(self):
        return len(self.activity)

    def __getitems__(self, indices):
        indices = torch.as_tensor(indices)
        return self.kmers[indices], self.activity[indices]


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norm_attention(x)).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(query, key, value)
        x = x + self.merge(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm_mlp(x))


class ActivityTransformer(nn.Module):
    def __init__(self, width=64, heads=4, depth=2):
        super().__init__()
        self.kmer = nn.Embedding(VOCABULARY, width)
        self.place = nn.Parameter(0.02 * torch.randn(TOKENS, width))
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(depth)])
        self.readout = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1))

    def forward(self, kmers):
        states = self.blocks(self.kmer(kmers) + self.place)
        return self.readout(states.amax(dim=1)).squeeze(-1)


class PromoterModel(L.LightningModule):
    def __init__(self, lr=1e-3):
        super().__init__()
        self.lr = lr
        self.net = ActivityTransformer()

    def training_step(self, batch, batch_idx):
        kmers, activity = batch
        loss = F.mse_loss(self.net(kmers), activity)
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(activity))
        return loss

    def validation_step(self, batch, batch_idx):
        kmers, activity = batch
        self.log("val_loss", F.mse_loss(self.net(kmers), activity), batch_size=len(activity))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=0.01, fused=True)
        steps = self.trainer.estimated_stepping_batches
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=self.lr, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def main():
    L.seed_everything(71)
    train = DataLoader(PromoterLibrary(9600, seed=1), batch_size=32, shuffle=True, drop_last=True, collate_fn=tuple)
    val = DataLoader(PromoterLibrary(512, seed=2), batch_size=128, collate_fn=tuple)
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        gradient_clip_val=1.0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(PromoterModel(), train, val)
    print({name: round(float(value), 4) for name, value in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
