"""A GRU session recommender learns to score the next item above popularity-sampled negatives. The mistake: the
negatives of each session are drawn with `Generator.choice(..., p=...)` over the whole catalogue.
---
expect: PD107
fix:
  ? "        self.noise = noise\\n"
  : "        self.noise_cdf = np.cumsum(noise)\\n        self.noise_cdf /= self.noise_cdf[-1]\\n"
  ? "        negatives = self.rng.choice(self.n_items, size=self.n_negatives, p=self.noise)  # costs time\\n"
  : "        negatives = np.searchsorted(self.noise_cdf, self.rng.random(self.n_negatives), side=\\"right\\")\\n"
half: score
"""

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

N_ITEMS = 60_000
LENGTH = 16


class SessionDataset(Dataset):
    """Sessions of item ids; the last item of each is the target."""

    def __init__(self, sessions, noise, n_negatives=40, seed=0):
        self.sessions = sessions
        self.noise = noise
        self.n_items = len(noise)
        self.n_negatives = n_negatives
        self.rng = np.random.default_rng(seed)

    def __len__(self):
        return len(self.sessions)

    def __getitem__(self, idx):
        session = self.sessions[idx]
        negatives = self.rng.choice(self.n_items, size=self.n_negatives, p=self.noise)  # costs time
        candidates = np.concatenate([session[-1:], negatives])
        return session[:-1], candidates


class SessionRecommender(L.LightningModule):
    def __init__(self, n_items, dim=64, hidden=160, lr=0.03):
        super().__init__()
        self.items = nn.Embedding(n_items, dim, sparse=True)
        nn.init.normal_(self.items.weight, std=dim**-0.5)
        self.gru = nn.GRU(dim, hidden, batch_first=True)
        self.project = nn.Linear(hidden, dim)
        self.lr = lr

    def forward(self, history, candidates):
        _, state = self.gru(self.items(history))
        query = self.project(state[-1])
        return torch.einsum("bd,bcd->bc", query, self.items(candidates))

    def training_step(self, batch, batch_idx):
        scores = self(*batch)
        loss = F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long))
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adagrad(self.parameters(), lr=self.lr)


def make_sessions(n_sessions, seed=3):
    rng = np.random.default_rng(seed)
    popularity = 1.0 / np.arange(1, N_ITEMS + 1) ** 0.8
    popularity /= popularity.sum()
    start = rng.choice(N_ITEMS, size=(n_sessions, 1), p=popularity)
    walk = rng.integers(-20, 21, size=(n_sessions, LENGTH)).cumsum(axis=1)
    sessions = np.concatenate([start, (start + walk) % N_ITEMS], axis=1).astype(np.int64)
    counts = np.bincount(sessions.ravel(), minlength=N_ITEMS) + 1.0
    noise = counts**0.75
    return sessions, noise / noise.sum()


if __name__ == "__main__":
    L.seed_everything(5)
    sessions, noise = make_sessions(5_120)
    loader = DataLoader(SessionDataset(sessions, noise), batch_size=64, shuffle=True, drop_last=True)
    model = SessionRecommender(N_ITEMS)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader)
