"""Predicts the cuisine of a recipe from its set of ingredients and their amounts, with attention over the ingredients.
All recipes are held as tensors and gathered by batch; the best model by validation accuracy is kept.
---
half: score
"""

import tempfile

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

CUISINES = ("Thai", "Italian", "Mexican", "Indian", "French", "Japanese", "Greek", "Moroccan", "Korean", "Southern")
INGREDIENTS = 3000
SLOTS = 18
EMPTY = 0


def cookbook(recipes=26_000, seed=0):
    """Ingredient numbers and log amounts, padded to the same number of slots, and the cuisine."""
    rng = np.random.default_rng(seed)
    pantry = rng.integers(1, INGREDIENTS, (len(CUISINES), 120))
    cuisine = rng.integers(len(CUISINES), size=recipes)
    typical = pantry[cuisine[:, None], rng.integers(120, size=(recipes, SLOTS))]
    common = rng.integers(1, INGREDIENTS, (recipes, SLOTS))
    ingredients = np.where(rng.random((recipes, SLOTS)) < 0.25, typical, common)
    count = rng.integers(SLOTS // 2, SLOTS + 1, size=recipes)
    ingredients[np.arange(SLOTS) >= count[:, None]] = EMPTY
    amounts = rng.normal(0, 1, (recipes, SLOTS)) * (ingredients != EMPTY)
    return TensorDataset(torch.from_numpy(ingredients), torch.from_numpy(amounts).float(), torch.from_numpy(cuisine))


class RecipeDataModule(L.LightningDataModule):
    def __init__(self, batch_size=64):
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage):
        book = cookbook()
        self.train_recipes = TensorDataset(*book[:24_000])
        self.val_recipes = TensorDataset(*book[24_000:])

    def train_dataloader(self):
        sampler = BatchSampler(RandomSampler(self.train_recipes), self.batch_size, drop_last=True)
        return DataLoader(self.train_recipes, sampler=sampler, batch_size=None)

    def val_dataloader(self):
        sampler = BatchSampler(SequentialSampler(self.val_recipes), 8 * self.batch_size, drop_last=False)
        return DataLoader(self.val_recipes, sampler=sampler, batch_size=None)


class SetAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x, mask):
        batch, slots, width = x.shape
        qkv = self.qkv(self.norm(x)).view(batch, slots, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
        x = x + self.out(attended.transpose(1, 2).reshape(batch, slots, width))
        return x + self.feed(x)


class CuisineModel(L.LightningModule):
    def __init__(self, width=96, heads=4, layers=2, learning_rate=2e-3):
        super().__init__()
        self.save_hyperparameters()
        self.ingredients = nn.Embedding(INGREDIENTS, width, padding_idx=EMPTY)
        self.amount = nn.Linear(1, width)
        self.layers = nn.ModuleList([SetAttention(width, heads) for _ in range(layers)])
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, len(CUISINES)))
        self.accuracy = MulticlassAccuracy(len(CUISINES), average="micro")

    def forward(self, ingredients, amounts):
        mask = ingredients != EMPTY
        x = self.ingredients(ingredients) + self.amount(amounts[..., None])
        for layer in self.layers:
            x = layer(x, mask)
        weights = mask[..., None].float()
        return self.head((x * weights).sum(1) / weights.sum(1))

    def training_step(self, batch, batch_idx):
        ingredients, amounts, cuisine = batch
        loss = F.cross_entropy(self(ingredients, amounts), cuisine, label_smoothing=0.05)
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(cuisine))
        return loss

    def validation_step(self, batch, batch_idx):
        ingredients, amounts, cuisine = batch
        self.accuracy.update(self(ingredients, amounts), cuisine)
        self.log("val_accuracy", self.accuracy, batch_size=len(cuisine))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.learning_rate, weight_decay=0.01, fused=True)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.trainer.max_epochs)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


def main():
    L.seed_everything(13)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = ModelCheckpoint(folder, monitor="val_accuracy", mode="max", save_weights_only=True)
        trainer = L.Trainer(
            accelerator="cpu",
            max_epochs=2,
            callbacks=[checkpoint],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(CuisineModel(), datamodule=RecipeDataModule())
        print(f"best validation accuracy {checkpoint.best_model_score:.3f}")


if __name__ == "__main__":
    main()
