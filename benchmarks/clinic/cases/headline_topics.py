"""Classifies short news headlines into topics with a small Transformer encoder on token ids. The mistake: every batch
is padded to the tokenizer's limit of 80 tokens, though a headline has about 28.
---
expect: PD116
fix:
  ? "    tokens = torch.zeros(len(batch), MAX_LEN, dtype=torch.long)"
  : "    tokens = torch.zeros(len(batch), max(len(ids) for ids, _ in batch), dtype=torch.long)"
half: score
"""

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import MulticlassAccuracy

VOCAB, MAX_LEN, TOPICS = 8000, 80, 12


def make_headlines(count, seed):
    rng = np.random.default_rng(seed)
    topics = rng.integers(0, TOPICS, count)
    lengths = np.clip(rng.normal(28, 2, count).round().astype(int), 22, 34)
    headlines = []
    for topic, length in zip(topics, lengths, strict=False):
        ids = rng.integers(1, VOCAB, length)
        own = rng.random(length) < 0.25
        ids[own] = 1 + topic * 200 + rng.integers(0, 200, own.sum())
        headlines.append(torch.from_numpy(ids))
    return headlines, torch.from_numpy(topics)


class Headlines(Dataset):
    def __init__(self, count, seed):
        self.headlines, self.topics = make_headlines(count, seed)

    def __len__(self):
        return len(self.headlines)

    def __getitem__(self, index):
        return self.headlines[index], self.topics[index]


def collate(batch):
    tokens = torch.zeros(len(batch), MAX_LEN, dtype=torch.long)
    for row, (ids, _) in enumerate(batch):
        tokens[row, : len(ids)] = ids
    return tokens, torch.stack([topic for _, topic in batch])


class TopicTransformer(L.LightningModule):
    def __init__(self, width=96, layers=2):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width, padding_idx=0)
        self.position = nn.Parameter(torch.randn(MAX_LEN, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, TOPICS)
        self.val_accuracy = MulticlassAccuracy(TOPICS)

    def forward(self, tokens):
        padding = tokens == 0
        hidden = self.embed(tokens) + self.position[: tokens.shape[1]]
        hidden = self.encoder(hidden, src_key_padding_mask=padding)
        keep = (~padding).unsqueeze(-1)
        return self.head((hidden * keep).sum(1) / keep.sum(1))

    def training_step(self, batch, batch_idx):
        tokens, topics = batch
        loss = F.cross_entropy(self(tokens), topics)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        tokens, topics = batch
        self.val_accuracy(self(tokens), topics)
        self.log("val_accuracy", self.val_accuracy, prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


def main():
    L.seed_everything(7)
    train = DataLoader(Headlines(1280, 0), batch_size=16, shuffle=True, collate_fn=collate)
    val = DataLoader(Headlines(128, 1), batch_size=64, collate_fn=collate)
    trainer = L.Trainer(accelerator="cpu", max_epochs=2, enable_checkpointing=False)
    trainer.fit(TopicTransformer(), train, val)


if __name__ == "__main__":
    main()
