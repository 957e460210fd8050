"""A small transformer encoder is pretrained on recipes by masked language modeling. The output layer predicts every
position, though only the masked ones enter the loss.
---
expect: PD325
fix:
  ? |2-
            logits = self.output(self.encode(tokens))  # costs time
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE)
  : |2-
            chosen = labels != IGNORE
            loss = F.cross_entropy(self.output(self.encode(tokens)[chosen]), labels[chosen])
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

VOCABULARY, LENGTH, MASK, IGNORE = 4000, 40, 0, -100


class Recipes(Dataset):
    """Token sequences with structure: every recipe draws from its cuisine's part of the vocabulary."""

    def __init__(self, count, generator):
        cuisine = torch.randint(0, 40, (count, 1), generator=generator)
        offset = torch.randint(1, 60, (count, LENGTH), generator=generator)
        self.tokens = 1 + (cuisine * 97 + offset.cumsum(dim=1) // 3) % (VOCABULARY - 1)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return self.tokens[index]


class Masking:
    """Collates a batch and masks tokens of it at random."""

    def __init__(self, rate):
        self.rate = rate

    def __call__(self, recipes):
        tokens = torch.stack(recipes)
        masked = torch.rand(tokens.shape) < self.rate
        return tokens.masked_fill(masked, MASK), tokens.masked_fill(~masked, IGNORE)


class RecipeModel(L.LightningModule):
    def __init__(self, width=96, heads=4, depth=2):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Parameter(0.02 * torch.randn(LENGTH, width))
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.output = nn.Linear(width, VOCABULARY)

    def encode(self, tokens):
        return self.encoder(self.words(tokens) + self.positions)

    def masked_loss(self, batch):
        tokens, labels = batch
        logits = self.output(self.encode(tokens))  # costs time
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE)
        return loss  # noqa: RET504 - of a fix's two lines

    def training_step(self, batch, batch_idx):
        loss = self.masked_loss(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        loss = self.masked_loss(batch)
        self.log("val_perplexity", loss.exp(), prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3, weight_decay=0.01)
        warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.05, total_iters=50)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": warmup, "interval": "step"}}


if __name__ == "__main__":
    L.seed_everything(17)
    generator = torch.Generator().manual_seed(17)
    collate = Masking(rate=0.15)
    train = DataLoader(Recipes(600, generator), batch_size=12, shuffle=True, collate_fn=collate)
    val = DataLoader(Recipes(64, generator), batch_size=16, collate_fn=collate)
    trainer = L.Trainer(accelerator="cpu", max_epochs=4, logger=False, enable_progress_bar=False)
    trainer.fit(RecipeModel(), train, val)
