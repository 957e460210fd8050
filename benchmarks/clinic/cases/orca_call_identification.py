"""Trains a small CNN that maps hydrophone spectrogram patches of orca calls to embeddings of the calling individual
(metric learning with a batch-hard triplet loss); the P-times-K batch sampler scans a Python list of all labels again
for every class of every batch.
---
expect: [PD511, PD101, PD107]
fix:
  ? |2-
            members = np.nonzero(np.array(self.labels) == name)[0]  # costs time
  : |2-
            members = self.members[name]
  ? |2-
            self.names = np.unique(labels)
  : |2-
            self.names = np.unique(labels)
            order = np.argsort(np.array(labels), kind="stable")
            bounds = np.searchsorted(np.array(labels)[order], self.names)
            self.members = dict(zip(self.names, np.split(order, bounds[1:])))
half: score
"""

import lightning
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

INDIVIDUALS = 800
CALLS = 40_000
MELS, FRAMES = 16, 24


class CallPatches(Dataset):
    """Log-mel patches kept in memory; whole batches are gathered at once."""

    def __init__(self, seed: int):
        rng = np.random.default_rng(seed)
        self.labels = rng.integers(0, INDIVIDUALS, CALLS).tolist()
        gen = torch.Generator().manual_seed(seed)
        voices = torch.randn(INDIVIDUALS, MELS, 1, generator=gen)
        contour = torch.randn(INDIVIDUALS, 1, FRAMES, generator=gen)
        ids = torch.tensor(self.labels)
        self.patches = torch.randn(CALLS, MELS, FRAMES, generator=gen)
        self.patches.add_(voices[ids]).add_(contour[ids])
        self.ids = ids

    def __len__(self):
        return CALLS

    def __getitems__(self, indices):
        index = torch.as_tensor(indices)
        return self.patches[index].unsqueeze(1), self.ids[index]


class ClassBalancedBatches(Sampler):
    """Each batch holds `calls` calls of each of `classes` individuals."""

    def __init__(self, labels, classes: int, calls: int, batches: int):
        self.labels = labels
        self.names = np.unique(labels)
        self.classes, self.calls, self.batches = classes, calls, batches
        self.rng = np.random.default_rng(7)

    def __len__(self):
        return self.batches

    def __iter__(self):
        for _ in range(self.batches):
            batch = []
            for name in self.rng.choice(self.names, self.classes, replace=False):
                members = np.nonzero(np.array(self.labels) == name)[0]  # costs time
                batch.extend(self.rng.choice(members, self.calls, replace=len(members) < self.calls).tolist())
            yield batch


def as_is(batch):
    return batch


class CallEmbedder(lightning.LightningModule):
    def __init__(self, width: int = 32):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(2 * width, 4 * width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d((2, 3)),
            nn.Flatten(),
            nn.Linear(4 * width * 6, 128),
        )

    def forward(self, x):
        return F.normalize(self.net(x), dim=1)

    def training_step(self, batch, batch_idx):
        x, ids = batch
        emb = self(x)
        distance = 2 - 2 * emb @ emb.T
        same = ids[:, None] == ids[None, :]
        hardest_positive = distance.masked_fill(~same, -1).amax(1)
        hardest_negative = distance.masked_fill(same, 9).amin(1)
        return F.softplus(4 * (hardest_positive - hardest_negative)).mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    lightning.seed_everything(3, verbose=False)
    data = CallPatches(seed=3)
    sampler = ClassBalancedBatches(data.labels, classes=24, calls=4, batches=45)
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=as_is)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    trainer.fit(CallEmbedder(), loader)
