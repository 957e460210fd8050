"""Each sample asks a feature store for its row; every call holds the client's lock and waits for the answer.
---
expect: PD106
also:
  PD101: worker processes overlap the waits, as each has its own client
half: score
fix:
  'self.store = store': 'self.rows = [store.get(key) for key in range(N_USERS)]'
  'self.store.get(index)  # costs time': 'self.rows[index]'
"""

import threading
import time

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

N_USERS = 480
ROUND_TRIP_S = 0.0006


class FeatureStore:
    def __init__(self):
        self.table = np.random.default_rng(0).normal(size=(N_USERS, 200)).astype(np.float32)
        self.lock = threading.Lock()

    def get(self, key):
        with self.lock:
            time.sleep(ROUND_TRIP_S)  # costs time
            return self.table[key]


class Users(Dataset):
    def __init__(self, store):
        self.store = store
        self.churned = np.random.default_rng(1).integers(0, 2, N_USERS).astype(np.float32)

    def __len__(self):
        return N_USERS

    def __getitem__(self, index):
        features = self.store.get(index)  # costs time
        return features, self.churned[index]


class Churn(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(200, 512), nn.SiLU(), nn.Linear(512, 512), nn.SiLU(), nn.Linear(512, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.binary_cross_entropy_with_logits(self.net(x).squeeze(-1), y)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    L.seed_everything(1)
    loader = DataLoader(Users(FeatureStore()), batch_size=24, shuffle=True)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=9,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Churn(), loader)
