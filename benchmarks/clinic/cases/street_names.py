"""Tells the language of a street name from its letter trigrams; a checkpoint is kept after each epoch.
The trigram vocabulary, a large dict, is one of the saved hyperparameters and so goes into each checkpoint.
---
expect: PD602
half: score
fix:
  ? "self.save_hyperparameters()"
  : 'self.save_hyperparameters(ignore=["vocabulary"])'
"""

import itertools
import string
import tempfile

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

LANGUAGES = 12
BUCKETS = 8192
TRIGRAMS = 16
LETTERS = string.ascii_lowercase + string.digits + "äöüßéèçñåøæłżš -'."
MAX_EPOCHS = 26


def trigram_vocabulary() -> dict[str, int]:
    """Each trigram of letters in street names, with its row in the hashed embedding table."""
    trigrams = ("".join(letters) for letters in itertools.product(LETTERS, repeat=3))
    return {trigram: number * 2_654_435_761 % BUCKETS for number, trigram in enumerate(trigrams)}


def labeled_names(names: int, seed: int) -> TensorDataset:
    """Names as rows of trigram buckets; each language favors its own range of buckets."""
    generator = torch.Generator().manual_seed(seed)
    language = torch.randint(0, LANGUAGES, (names,), generator=generator)
    own = torch.randn(names, TRIGRAMS, generator=generator) * 900.0
    center = (language + 0.5) * (BUCKETS / LANGUAGES)
    rows = (center.unsqueeze(1) + own).long() % BUCKETS
    return TensorDataset(rows, language)


class StreetLanguage(L.LightningModule):
    def __init__(self, vocabulary: dict[str, int], width: int = 64, learning_rate: float = 2e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.vocabulary = vocabulary
        self.embedding = nn.EmbeddingBag(BUCKETS, width, mode="mean")
        self.net = nn.Sequential(
            nn.Linear(width, 512),
            nn.ReLU(),
            nn.Linear(512, 512),
            nn.ReLU(),
            nn.Linear(512, LANGUAGES),
        )

    def encode(self, name: str) -> torch.Tensor:
        padded = f" {name.lower()} "
        grams = [padded[start : start + 3] for start in range(len(padded) - 2)]
        return torch.tensor([[self.vocabulary[gram] for gram in grams if gram in self.vocabulary]])

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.net(self.embedding(rows))

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        rows, language = batch
        return F.cross_entropy(self(rows), language)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.hparams.learning_rate, fused=True)


def main() -> None:
    L.seed_everything(77)
    dataset = labeled_names(names=256 * 25, seed=77)
    batches = BatchSampler(RandomSampler(dataset), batch_size=256, drop_last=True)
    loader = DataLoader(dataset, sampler=batches, batch_size=None)
    model = StreetLanguage(trigram_vocabulary())
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=MAX_EPOCHS,
        callbacks=[ModelCheckpoint(dirpath=tempfile.mkdtemp(prefix="streets_"), every_n_epochs=1)],
        logger=False,
        enable_progress_bar=False,
    )
    trainer.fit(model, loader)
    model.eval()
    with torch.inference_mode():
        print("language of 'Lindenstrasse':", int(model(model.encode("Lindenstrasse")).argmax()))


if __name__ == "__main__":
    main()
