"""A SASRec-style next-item recommender is trained with popularity-weighted sampled negatives. The dataset draws the
negatives of every user with Generator.choice(p=...), which checks and accumulates the whole catalogue's probabilities
on each call.
---
expect: [PD107, PD101]
fix:
  ? "        self.popularity = popularity"
  : "        self.cdf = np.cumsum(popularity) / popularity.sum()"
  ? "        negatives = self.rng.choice(self.n_items, size=self.n_neg, p=self.popularity)  # costs time"
  : "        negatives = self.cdf.searchsorted(self.rng.random(self.n_neg), side='right')"
half: score
"""

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

N_ITEMS, N_USERS, MAX_LEN, N_NEG = 18_000, 8_000, 16, 64


def simulate_histories(seed=7):
    rng = np.random.default_rng(seed)
    popularity = 1.0 / np.arange(1, N_ITEMS + 1) ** 0.8
    popularity /= popularity.sum()
    taste = rng.integers(0, 40, size=N_USERS)
    base = rng.choice(N_ITEMS, size=(N_USERS, MAX_LEN + 1), p=popularity)
    block = N_ITEMS // 40
    own = taste[:, None] * block + rng.integers(0, block, size=base.shape)
    histories = np.where(rng.random(base.shape) < 0.6, own, base)
    return histories, popularity


class NextItemDataset(Dataset):
    def __init__(self, histories, popularity, n_neg, seed):
        self.histories = histories
        self.n_items = len(popularity)
        self.n_neg = n_neg
        # word2vec style smoothing of the unigram distribution
        popularity = popularity**0.75
        popularity = popularity / popularity.sum()
        self.popularity = popularity
        self.rng = np.random.default_rng(seed)

    def __len__(self):
        return len(self.histories)

    def __getitem__(self, idx):
        seq = self.histories[idx]
        negatives = self.rng.choice(self.n_items, size=self.n_neg, p=self.popularity)  # costs time
        return torch.from_numpy(seq[:-1]), torch.from_numpy(seq[1:]), torch.from_numpy(negatives)


class SASRec(L.LightningModule):
    def __init__(self, n_items, dim=64, heads=2, layers=2, dropout=0.1, lr=2e-3):
        super().__init__()
        self.save_hyperparameters()
        self.items = nn.Embedding(n_items, dim)
        self.positions = nn.Parameter(torch.randn(MAX_LEN, dim) * 0.02)
        nn.init.normal_(self.items.weight, std=0.02)
        block = nn.TransformerEncoderLayer(dim, heads, 2 * dim, dropout, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(block, layers, norm=nn.LayerNorm(dim), enable_nested_tensor=False)
        self.register_buffer("causal", nn.Transformer.generate_square_subsequent_mask(MAX_LEN), persistent=False)

    def forward(self, seq):
        x = self.items(seq) + self.positions
        return self.encoder(x, mask=self.causal, is_causal=True)

    def training_step(self, batch, batch_idx):
        seq, target, negatives = batch
        h = self(seq)
        pos = (h * self.items(target)).sum(-1, keepdim=True)
        neg = torch.bmm(h, self.items(negatives).transpose(1, 2))
        logits = torch.cat([pos, neg], dim=-1)
        loss = F.cross_entropy(logits.flatten(0, 1), logits.new_zeros(target.numel(), dtype=torch.long))
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr, fused=True)


def main():
    L.seed_everything(7)
    histories, popularity = simulate_histories()
    train = NextItemDataset(histories, popularity, N_NEG, seed=11)
    loader = DataLoader(train, batch_size=64, shuffle=True, drop_last=True)
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=3, logger=False, enable_checkpointing=False, enable_model_summary=False
    )
    trainer.fit(SASRec(N_ITEMS), loader)
    print("final loss", float(trainer.callback_metrics["train_loss"]))


if __name__ == "__main__":
    main()
