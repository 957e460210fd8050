"""Scores card payments for fraud with a recurrent network over the account's last 32 payments, which are read from an
SQLite file. The payments table has no index on the account, so each sample's query scans the whole table.
---
expect: [PD107, PD101]
fix:
  ? |-
    db.commit()
  : |-
    db.execute("CREATE INDEX idx_payments_account_ts ON payments (account, ts)")
        db.commit()
half: score
"""

import shutil
import sqlite3
import tempfile
from pathlib import Path

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

N_ACCOUNTS, N_PAYMENTS, HISTORY = 320, 16_000, 32


def build_database(path):
    rng = np.random.default_rng(3)
    account = rng.integers(0, N_ACCOUNTS, N_PAYMENTS)
    ts = np.sort(rng.integers(1_700_000_000, 1_710_000_000, N_PAYMENTS))
    amount = np.round(rng.lognormal(3.2, 1.1, N_PAYMENTS), 2)
    merchant = rng.integers(1, 200, N_PAYMENTS)
    risk = 1.2 * (np.log(amount) - 3.2) + 0.02 * (merchant - 100)
    fraud = (rng.random(N_PAYMENTS) < 1 / (1 + np.exp(3.0 - risk))).astype(int)
    columns = (account, ts, amount, merchant, fraud)
    db = sqlite3.connect(path)
    db.execute(
        "CREATE TABLE payments (id INTEGER PRIMARY KEY, account INTEGER, ts INTEGER, amount REAL,"
        " merchant INTEGER, fraud INTEGER)"
    )
    db.executemany(
        "INSERT INTO payments (account, ts, amount, merchant, fraud) VALUES (?, ?, ?, ?, ?)",
        zip(*(c.tolist() for c in columns), strict=False),
    )
    db.commit()
    db.close()


class PaymentHistory(Dataset):
    QUERY = "SELECT ts, amount, merchant, fraud FROM payments WHERE account = ? AND ts <= ? ORDER BY ts DESC LIMIT ?"

    def __init__(self, path, n_samples):
        self.db = sqlite3.connect(path)
        rows = self.db.execute("SELECT account, ts FROM payments ORDER BY id DESC LIMIT ?", (n_samples,))
        self.targets = rows.fetchall()

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        account, ts = self.targets[index]
        rows = self.db.execute(self.QUERY, (account, ts, HISTORY)).fetchall()  # costs time
        table = np.zeros((HISTORY, 4), dtype=np.float64)
        table[-len(rows) :] = rows[::-1]
        age = np.log1p((ts - table[:, 0]) / 3600.0)
        numeric = np.stack([np.log1p(table[:, 1]), age], 1).astype(np.float32)
        return numeric, table[:, 2].astype(np.int64), np.float32(table[-1, 3])


class FraudScorer(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.merchant = nn.Embedding(200, 30, padding_idx=0)
        self.rnn = nn.GRU(32, 112, num_layers=2, batch_first=True)
        self.head = nn.Sequential(nn.Linear(112, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, numeric, merchant):
        states, _ = self.rnn(torch.cat([numeric, self.merchant(merchant)], -1))
        return self.head(states[:, -1]).squeeze(-1)

    def training_step(self, batch, batch_idx):
        numeric, merchant, fraud = batch
        loss = F.binary_cross_entropy_with_logits(self(numeric, merchant), fraud)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


def main():
    L.seed_everything(11)
    folder = Path(tempfile.mkdtemp())
    build_database(folder / "payments.db")
    dataset = PaymentHistory(folder / "payments.db", n_samples=5_120)
    loader = DataLoader(dataset, batch_size=32, shuffle=True, drop_last=True)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(FraudScorer(), loader)
    dataset.db.close()
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
