"""Trains a small chess outcome network on phase-balanced batches, but the sampler redraws from the full weight vector
per batch.
---
expect: PD511
fix:
  ? |-
    for _ in range(self.num_batches):
                yield torch.multinomial(  # costs time
                    self.weights, self.batch_size, replacement=True, generator=self.generator
                )
  : |-
    draws = torch.multinomial(
                self.weights,
                self.batch_size * self.num_batches,
                replacement=True,
                generator=self.generator,
            )
            yield from draws.split(self.batch_size)
half: score
"""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

NUM_POSITIONS = 1_200_000
PIECES = 32
NUM_FEATURES = 12 * 64  # piece kind x square
PHASES = 8


class Positions(Dataset):
    """Positions as lists of active (piece, square) features, fetched a batch at a time."""

    def __init__(self, features, outcomes):
        self.features, self.outcomes = features, outcomes

    def __len__(self):
        return len(self.outcomes)

    def __getitem__(self, index):
        return self.features[index].int(), self.outcomes[index]


class PhaseBalancedBatches(Sampler):
    """Batches of positions drawn so that each phase of the game is equally likely."""

    def __init__(self, phases, batch_size, num_batches, seed):
        counts = torch.bincount(phases, minlength=PHASES).double()
        self.weights = (1.0 / counts)[phases]
        self.batch_size = batch_size
        self.num_batches = num_batches
        self.generator = torch.Generator().manual_seed(seed)

    def __len__(self):
        return self.num_batches

    def __iter__(self):
        for _ in range(self.num_batches):
            yield torch.multinomial(  # costs time
                self.weights, self.batch_size, replacement=True, generator=self.generator
            )


class OutcomeNet(lightning.LightningModule):
    """Feature transformer (sum of embeddings) and two dense layers: loss, draw or win for the side to move."""

    def __init__(self, width=160):
        super().__init__()
        self.transformer = nn.EmbeddingBag(NUM_FEATURES, width, mode="sum")
        self.head = nn.Sequential(
            nn.Hardtanh(0.0, 1.0),
            nn.Linear(width, 64),
            nn.ReLU(),
            nn.Linear(64, 3),
        )
        nn.init.normal_(self.transformer.weight, std=0.05)
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, features):
        return self.head(self.transformer(features))

    def training_step(self, batch, batch_idx):
        features, outcomes = batch
        loss = self.criterion(self(features), outcomes)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


def make_positions():
    generator = torch.Generator().manual_seed(1)
    features = torch.randint(0, NUM_FEATURES, (NUM_POSITIONS, PIECES), generator=generator, dtype=torch.int16)
    values = torch.randn(NUM_FEATURES, 1, generator=generator)
    with torch.no_grad():
        score = nn.functional.embedding_bag(features.int(), values, mode="sum").squeeze(1)
    outcomes = torch.bucketize(score, torch.tensor([-2.5, 2.5]))
    # openings are plentiful, long endgames are rare
    shares = torch.tensor([0.30, 0.22, 0.16, 0.12, 0.09, 0.06, 0.03, 0.02])
    phases = torch.multinomial(shares, NUM_POSITIONS, replacement=True, generator=generator)
    return features, outcomes, phases


if __name__ == "__main__":
    lightning.seed_everything(7)
    features, outcomes, phases = make_positions()
    sampler = PhaseBalancedBatches(phases, batch_size=256, num_batches=500, seed=3)
    loader = DataLoader(Positions(features, outcomes), batch_size=None, sampler=sampler)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(OutcomeNet(), loader)
