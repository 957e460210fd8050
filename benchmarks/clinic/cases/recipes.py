"""Trains a network that completes the ingredient list of a recipe, with L2 regularization; the squared norm of all
weights is added to the loss instead of being left to the optimizer.
---
expect: PD335
fix:
  ? |-
    penalty = sum(weight.pow(2).sum() for weight in self.parameters())  # costs time
            return loss + STRENGTH * penalty
  : "return loss"
  "lr=1e-3, fused=True": "lr=1e-3, weight_decay=2 * STRENGTH, fused=True"
half: score
"""

import lightning
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

INGREDIENTS = 12000
SHOWN = 9
STRENGTH = 1e-6


def synthetic_recipes(count, seed):
    """Recipes draw their ingredients from the pantry of one of 60 cuisines; one ingredient is left out."""
    gen = torch.Generator().manual_seed(seed)
    cuisine = torch.randint(60, (count, 1), generator=gen)
    item = (torch.rand(count, SHOWN + 1, generator=gen) ** 2 * 200).long()
    ingredient = cuisine * 200 + item
    return ingredient[:, :SHOWN], ingredient[:, SHOWN]


class Pantry(lightning.LightningModule):
    def __init__(self, width=256):
        super().__init__()
        self.bag = nn.EmbeddingBag(INGREDIENTS, width, mode="mean")
        self.mix = nn.Sequential(
            nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width), nn.LayerNorm(width)
        )
        self.out = nn.Linear(width, INGREDIENTS)

    def forward(self, shown):
        return self.out(self.mix(self.bag(shown)))

    def training_step(self, batch, batch_idx):
        shown, missing = batch
        loss = F.cross_entropy(self(shown), missing)
        penalty = sum(weight.pow(2).sum() for weight in self.parameters())  # costs time
        return loss + STRENGTH * penalty

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


class Batches(TensorDataset):
    """A TensorDataset that the loader may ask for a whole batch of rows at once."""

    def __getitems__(self, rows):
        return self[torch.tensor(rows)]


def as_is(batch):
    return batch


if __name__ == "__main__":
    lightning.seed_everything(29, verbose=False)
    recipes = Batches(*synthetic_recipes(2752, seed=9))
    loader = DataLoader(recipes, batch_size=64, shuffle=True, collate_fn=as_is)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Pantry(), loader)
