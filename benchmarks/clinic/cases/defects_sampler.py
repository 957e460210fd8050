"""A sampler that balances rare classes draws each index by a weighted choice over the whole dataset.
---
expect:
- PD511
also:
  PD101: the line of the sampler
  PD107: the line of the sampler
half: tune
fix:
  'for _ in range(self.n_draws):': 'for index in self.rng.choice(len(self.weights), self.n_draws, p=self.weights):'
  'yield int(self.rng.choice(len(self.weights), p=self.weights))  # costs time': 'yield int(index)'
"""

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

N_CLASSES = 5


def make_patches(n):
    rng = np.random.default_rng(0)
    labels = rng.choice(N_CLASSES, n, p=[0.9, 0.05, 0.03, 0.015, 0.005])
    patches = rng.standard_normal((n, 1, 16, 16), dtype=np.float32)
    patches[:, 0, 4:12, 4:12] += 0.4 * labels[:, None, None]
    return torch.from_numpy(patches), torch.from_numpy(labels)


class BalancedSampler(Sampler):
    def __init__(self, labels, n_draws):
        counts = np.bincount(labels, minlength=N_CLASSES)
        weights = 1 / counts[labels]
        self.weights = weights / weights.sum()
        self.n_draws = n_draws
        self.rng = np.random.default_rng(7)

    def __len__(self):
        return self.n_draws

    def __iter__(self):
        for _ in range(self.n_draws):
            yield int(self.rng.choice(len(self.weights), p=self.weights))  # costs time


class DefectClassifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1, stride=2),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1, stride=2),
            nn.ReLU(),
        )
        self.head = nn.Linear(32 * 4 * 4, N_CLASSES)

    def training_step(self, batch, batch_idx):
        patches, labels = batch
        loss = F.cross_entropy(self.head(self.features(patches).flatten(1)), labels)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9, fused=True)


L.seed_everything(1)
patches, labels = make_patches(40_000)
loader = DataLoader(
    TensorDataset(patches, labels), batch_size=64, sampler=BalancedSampler(labels.numpy(), n_draws=6_400)
)
trainer = L.Trainer(
    accelerator="cpu",
    max_epochs=3,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(DefectClassifier(), loader)
