r"""AutoRec recommender on ratings kept in SQLite; the query per user has no index to use, so each one reads the whole
table.
---
expect: PD107
half: score
fix:
  ? "    con.executemany(\"INSERT INTO ratings VALUES (?, ?, ?)\", rows)"
  : |2-
        con.executemany("INSERT INTO ratings VALUES (?, ?, ?)", rows)
        con.execute("CREATE INDEX ratings_by_user ON ratings (user_id)")
"""

import os
import sqlite3

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, Dataset

NUM_USERS, NUM_ITEMS = 2400, 1500
QUERY = "SELECT item_id, stars FROM ratings WHERE user_id = ?"


def build_database(path, per_user=10):
    if os.path.exists(path):
        os.remove(path)
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(NUM_USERS), per_user)
    items = rng.integers(0, NUM_ITEMS, size=users.size)
    stars = rng.integers(1, 6, size=users.size)
    order = rng.permutation(users.size)
    rows = zip(users[order].tolist(), items[order].tolist(), stars[order].tolist(), strict=False)
    con = sqlite3.connect(path)
    con.execute("CREATE TABLE ratings (user_id INTEGER, item_id INTEGER, stars INTEGER)")
    con.executemany("INSERT INTO ratings VALUES (?, ?, ?)", rows)
    con.commit()
    con.close()


class RatingsDataset(Dataset):
    def __init__(self, path):
        self.con = sqlite3.connect(path)
        self.users = list(range(NUM_USERS))

    def __len__(self):
        return len(self.users)

    def __getitem__(self, i):
        rows = self.con.execute(QUERY, (self.users[i],)).fetchall()  # costs time
        rated = np.array(rows, dtype=np.int64)
        vector = np.zeros(NUM_ITEMS, dtype=np.float32)
        mask = np.zeros(NUM_ITEMS, dtype=np.float32)
        vector[rated[:, 0]] = rated[:, 1] / 5.0
        mask[rated[:, 0]] = 1.0
        return vector, mask


class AutoRec(LightningModule):
    def __init__(self, hidden=320):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(NUM_ITEMS, hidden), nn.SELU(), nn.Dropout(0.3))
        self.decoder = nn.Linear(hidden, NUM_ITEMS)

    def forward(self, x):
        return self.decoder(self.encoder(x))

    def training_step(self, batch, batch_idx):
        ratings, mask = batch
        error = (self(ratings) - ratings) * mask
        loss = error.square().sum() / mask.sum()
        self.log("train_rmse", loss.detach().sqrt())
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    seed_everything(11)
    build_database("ratings.db")
    loader = DataLoader(RatingsDataset("ratings.db"), batch_size=16, shuffle=True)
    trainer = Trainer(
        max_epochs=4,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(AutoRec(), loader)
