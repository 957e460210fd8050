"""Trains a classifier of collision events whose output shall not depend on the invariant mass, against an adversary
that guesses the mass from it, with manual optimization of both.
---
half: score
"""

import lightning
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

PARTICLES, MASS_BINS = 32, 10


def make_events(number=20_000, seed=51):
    """Momentum, direction and charge of the particles; signal events have narrower sprays."""
    rng = np.random.default_rng(seed)
    signal = rng.integers(0, 2, number)
    mass = rng.uniform(0, 1, number) ** (1 + 0.5 * signal)
    spread = (0.5 + mass - 0.25 * signal)[:, None]
    momentum = rng.exponential(1, (number, PARTICLES))
    eta, phi = rng.normal(0, 1, (2, number, PARTICLES)) * spread
    charge = rng.integers(-1, 2, (number, PARTICLES))
    particles = np.stack([np.log1p(momentum), eta, phi, charge], axis=2).astype(np.float32)
    bins = np.minimum((mass * MASS_BINS).astype(np.int64), MASS_BINS - 1)
    return torch.from_numpy(particles), torch.from_numpy(signal.astype(np.float32)), torch.from_numpy(bins)


class Events(Dataset):
    def __init__(self, particles, signal, mass):
        self.columns = particles, signal, mass

    def __len__(self):
        return len(self.columns[0])

    def __getitems__(self, indices):
        return tuple(column[indices] for column in self.columns)


class MassFreeTagger(lightning.LightningModule):
    def __init__(self, width=160, strength=0.3):
        super().__init__()
        self.automatic_optimization = False
        self.strength = strength
        self.particle = nn.Sequential(
            nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)
        )
        self.event = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
        self.adversary = nn.Sequential(
            nn.Linear(1, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, MASS_BINS)
        )

    def forward(self, particles):
        return self.event(self.particle(particles).mean(dim=1))

    def training_step(self, batch, batch_idx):
        particles, signal, mass = batch
        tagger_optimizer, adversary_optimizer = self.optimizers()
        score = self(particles)

        adversary_optimizer.zero_grad()
        self.manual_backward(F.cross_entropy(self.adversary(score.detach()), mass))
        adversary_optimizer.step()

        tagger_optimizer.zero_grad()
        self.adversary.requires_grad_(False)
        loss = F.binary_cross_entropy_with_logits(score.squeeze(1), signal)
        self.manual_backward(loss - self.strength * F.cross_entropy(self.adversary(score), mass))
        self.adversary.requires_grad_(True)
        tagger_optimizer.step()

    def configure_optimizers(self):
        tagger = [*self.particle.parameters(), *self.event.parameters()]
        return (
            torch.optim.AdamW(tagger, lr=1e-3, fused=True),
            torch.optim.AdamW(self.adversary.parameters(), lr=2e-3, fused=True),
        )


def main():
    lightning.seed_everything(51)
    loader = DataLoader(
        Events(*make_events()), batch_size=256, shuffle=True, drop_last=True, collate_fn=lambda batch: batch
    )
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(MassFreeTagger(), loader)


if __name__ == "__main__":
    main()
