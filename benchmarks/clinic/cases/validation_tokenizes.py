"""Training texts are token ids already; validation splits its texts by a regular expression in each epoch.
---
expect: PD111
half: tune
fix:
  'self.texts = texts': 'self.rows = [encode(text) for text in texts]'
  'encode(self.texts[index])  # costs time': 'self.rows[index]'
"""

import re

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, TensorDataset

VOCABULARY = {f"w{index}": index for index in range(5000)}
TOKEN = re.compile(r"[a-z]+[0-9]*|[0-9]+(?:[.,][0-9]+)*|[^\w\s]")
LENGTH = 400


def encode(text):
    words = TOKEN.findall(text.lower())  # costs time
    return np.array([VOCABULARY.get(word, 0) for word in words][:LENGTH])  # costs time


class ReviewTexts(Dataset):
    def __init__(self, texts, labels):
        self.texts = texts
        self.labels = labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        tokens = encode(self.texts[index])  # costs time
        return tokens, self.labels[index]


class Sentiment(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.words = nn.EmbeddingBag(5000, 128, mode="mean")
        self.head = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 2))

    def loss(self, batch):
        tokens, labels = batch
        return nn.functional.cross_entropy(self.head(self.words(tokens)), labels)

    def training_step(self, batch, batch_idx):
        return self.loss(batch)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    L.seed_everything(1)
    random = np.random.default_rng(0)
    texts = [
        "".join(f"W{word}, " if word % 9 == 0 else f"w{word} " for word in random.integers(0, 5000, LENGTH))
        for _ in range(512)
    ]
    train = TensorDataset(torch.randint(0, 5000, (1024, LENGTH)), torch.randint(0, 2, (1024,)))
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=18,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        Sentiment(),
        DataLoader(train, sampler=BatchSampler(RandomSampler(train), 64, drop_last=True), batch_size=None),
        DataLoader(ReviewTexts(texts, random.integers(0, 2, 512)), batch_size=64),
    )
