"""A two-tower net over hashed word and character n-grams ranks answers to customers' questions with in-batch
negatives. The gradient of the big hash table is dense although a batch touches few of its rows.
---
expect: PD322
fix:
  ? 'self.table = nn.EmbeddingBag(BUCKETS, dim, mode="mean")  # costs time'
  : 'self.table = nn.EmbeddingBag(BUCKETS, dim, mode="mean", sparse=True)'
half: tune
"""

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

BUCKETS = 2**16
TOPICS = 200


class FaqPairs(Dataset):
    """Questions and answers as lists of hashed n-gram ids; both sides of a pair share a topic's vocabulary."""

    def __init__(self, count, seed):
        rng = np.random.default_rng(seed)
        topic_ids = np.random.default_rng(99).integers(0, BUCKETS, size=(TOPICS, 60))
        self.pairs = []
        for topic in rng.integers(0, TOPICS, size=count):
            question = self.draw(rng, topic_ids[topic], rng.integers(10, 25))
            answer = self.draw(rng, topic_ids[topic], rng.integers(30, 60))
            self.pairs.append((question, answer))

    @staticmethod
    def draw(rng, vocabulary, size):
        common = (BUCKETS * rng.random(size // 2) ** 6).astype(np.int64)
        return torch.from_numpy(np.concatenate([rng.choice(vocabulary, size - size // 2), common]))

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, index):
        return self.pairs[index]


def flatten(texts):
    """Ids of all texts in a row, and where each text starts, as nn.EmbeddingBag wants them."""
    lengths = torch.tensor([0] + [len(text) for text in texts[:-1]])
    return torch.cat(texts), lengths.cumsum(0)


def collate(samples):
    questions, answers = zip(*samples, strict=True)
    return flatten(questions), flatten(answers)


class Ranker(L.LightningModule):
    def __init__(self, dim=48, hidden=256, lr=0.02):
        super().__init__()
        self.table = nn.EmbeddingBag(BUCKETS, dim, mode="mean")  # costs time
        self.question_tower = self.tower(dim, hidden)
        self.answer_tower = self.tower(dim, hidden)
        self.lr = lr

    @staticmethod
    def tower(dim, hidden):
        return nn.Sequential(
            nn.LayerNorm(dim),
            nn.Linear(dim, hidden),
            nn.GELU(),
            nn.Linear(hidden, hidden),
            nn.GELU(),
            nn.Linear(hidden, 64),
        )

    def forward(self, questions, answers):
        q = F.normalize(self.question_tower(self.table(*questions)), dim=-1)
        a = F.normalize(self.answer_tower(self.table(*answers)), dim=-1)
        return 15.0 * q @ a.T

    def training_step(self, batch, batch_idx):
        scores = self(*batch)
        target = torch.arange(len(scores), device=scores.device)
        loss = F.cross_entropy(scores, target)
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(scores))
        return loss

    def validation_step(self, batch, batch_idx):
        scores = self(*batch)
        own = scores.diagonal().unsqueeze(1)
        reciprocal_rank = 1.0 / (scores >= own).sum(dim=1)
        self.log("val_mrr", reciprocal_rank.mean(), batch_size=len(scores))

    def configure_optimizers(self):
        return torch.optim.Adagrad(self.parameters(), lr=self.lr)


if __name__ == "__main__":
    L.seed_everything(21)
    train = DataLoader(FaqPairs(8960, 1), batch_size=128, shuffle=True, collate_fn=collate)
    val = DataLoader(FaqPairs(512, 2), batch_size=128, collate_fn=collate)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Ranker(), train, val)
