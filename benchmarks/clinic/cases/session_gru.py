"""Next-item prediction over shopping sessions with a GRU; each article code is turned into its number by a linear
search through a list of articles.
---
expect: PD107
half: score
fix:
  ? "self.catalog = catalog"
  : "self.number_of = {code: i for i, code in enumerate(catalog)}"
  ? "numbers = [self.catalog.index(code) + 1 for code in session]  # costs time"
  : "numbers = [self.number_of[code] + 1 for code in session]"
"""

import random

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset


def make_shop(n_articles=2500, n_sessions=2560):
    rng = random.Random(5)
    catalog = [f"ART-{rng.randrange(10**7):07d}-{n:04d}" for n in range(n_articles)]
    sessions = []
    for _ in range(n_sessions):
        start = rng.randrange(n_articles)
        length = rng.randint(14, 18)
        sessions.append([catalog[(start + rng.randint(0, 40)) % n_articles] for _ in range(length)])
    return catalog, sessions


class SessionDataset(Dataset):
    def __init__(self, catalog, sessions):
        self.catalog = catalog
        self.sessions = sessions

    def __len__(self):
        return len(self.sessions)

    def __getitem__(self, i):
        session = self.sessions[i]
        numbers = [self.catalog.index(code) + 1 for code in session]  # costs time
        return torch.tensor(numbers)


def collate(sessions):
    padded = pad_sequence(sessions, batch_first=True)
    lengths = torch.tensor([len(s) for s in sessions])
    last = lengths - 1
    rows = torch.arange(len(sessions))
    return padded[:, :-1], last - 1, padded[rows, last]


class GRU4Rec(LightningModule):
    def __init__(self, n_articles, dim=32, hidden=48):
        super().__init__()
        self.items = nn.Embedding(n_articles + 1, dim, padding_idx=0)
        self.gru = nn.GRU(dim, hidden, batch_first=True)
        self.project = nn.Linear(hidden, dim)
        self.bias = nn.Parameter(torch.zeros(n_articles + 1))

    def forward(self, clicks, last):
        states, _ = self.gru(self.items(clicks))
        final = states[torch.arange(len(clicks)), last]
        return F.linear(self.project(final), self.items.weight, self.bias)

    def training_step(self, batch, batch_idx):
        clicks, last, target = batch
        loss = F.cross_entropy(self(clicks, last), target)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3, fused=True)


if __name__ == "__main__":
    seed_everything(2)
    catalog, sessions = make_shop()
    loader = DataLoader(SessionDataset(catalog, sessions), batch_size=32, shuffle=True, collate_fn=collate)
    trainer = Trainer(
        accelerator="cpu", max_epochs=6, enable_progress_bar=False, enable_checkpointing=False, logger=False
    )
    trainer.fit(GRU4Rec(len(catalog)), loader)
