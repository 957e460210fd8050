"""Predicts the next stopover region of ringed birds from their last positions; rare species are drawn more often.
The sampler calls Generator.choice with the whole weight vector once per drawn index.
---
expect: [PD101, PD107, PD511]
half: score
fix:
  ? "for _ in range(self.draws):"
  : "for pick in self.rng.choice(len(self.weights), size=self.draws, p=self.weights).tolist():"
  ? "yield int(self.rng.choice(len(self.weights), p=self.weights))  # costs time"
  : "yield pick"
"""

from collections.abc import Iterator

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, Sampler, TensorDataset

SPECIES = 60
REGIONS = 48
FIXES = 12
BATCH_SIZE = 128
MAX_EPOCHS = 10


class RareSpeciesSampler(Sampler[int]):
    """Draws ring records with a chance that falls with the number of records of the species."""

    def __init__(self, species: np.ndarray, draws: int, seed: int) -> None:
        share = 1.0 / np.bincount(species, minlength=SPECIES)[species]
        self.weights = share / share.sum()
        self.draws = draws
        self.rng = np.random.default_rng(seed)

    def __len__(self) -> int:
        return self.draws

    def __iter__(self) -> Iterator[int]:
        for _ in range(self.draws):
            yield int(self.rng.choice(len(self.weights), p=self.weights))  # costs time


def ring_records(records: int, seed: int) -> tuple[TensorDataset, np.ndarray]:
    rng = np.random.default_rng(seed)
    species = np.minimum(rng.geometric(0.08, size=records) - 1, SPECIES - 1)
    heading = rng.uniform(-np.pi, np.pi, size=(records, 1))
    steps = rng.gamma(2.0, 0.5, size=(records, FIXES))
    latitude = np.cumsum(steps * np.cos(heading), axis=1)
    longitude = np.cumsum(steps * np.sin(heading), axis=1)
    track = np.concatenate([latitude, longitude, steps], axis=1).astype(np.float32)
    region = (np.floor((heading[:, 0] + np.pi) / (2 * np.pi) * REGIONS).astype(np.int64) + species) % REGIONS
    dataset = TensorDataset(torch.from_numpy(track), torch.from_numpy(species), torch.from_numpy(region))
    return dataset, species


class StopoverModule(L.LightningModule):
    def __init__(self, width: int = 640) -> None:
        super().__init__()
        self.species = nn.Embedding(SPECIES, 32)
        self.net = nn.Sequential(
            nn.Linear(3 * FIXES + 32, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, REGIONS),
        )

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        track, species, region = batch
        logits = self.net(torch.cat([track, self.species(species)], dim=1))
        return F.cross_entropy(logits, region)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


def main() -> None:
    L.seed_everything(3)
    dataset, species = ring_records(records=15_000, seed=3)
    sampler = RareSpeciesSampler(species, draws=40 * BATCH_SIZE, seed=3)
    batches = BatchSampler(sampler, BATCH_SIZE, drop_last=True)
    loader = DataLoader(dataset, sampler=batches, batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=MAX_EPOCHS,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
    )
    trainer.fit(StopoverModule(), loader)


if __name__ == "__main__":
    main()
