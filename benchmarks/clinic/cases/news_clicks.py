"""Trains a news recommender on click histories with Adagrad; the article table yields dense gradients.
---
expect: PD322
fix:
  ? |-
    nn.Embedding(ARTICLES, dim, padding_idx=0)
  : |-
    nn.Embedding(ARTICLES, dim, padding_idx=0, sparse=True)
half: score
"""

import lightning
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

ARTICLES, HISTORY, CANDIDATES = 120_000, 20, 5


class Impressions(Dataset):
    """Click history and candidates (the first one was clicked), fetched a batch at a time."""

    def __init__(self, histories, candidates):
        self.histories, self.candidates = histories, candidates

    def __len__(self):
        return len(self.histories)

    def __getitem__(self, index):
        return self.histories[index], self.candidates[index]


class NewsRecommender(lightning.LightningModule):
    """Attention pooling over the articles read, scored against the candidates by dot product."""

    def __init__(self, dim=48, width=192):
        super().__init__()
        self.articles = nn.Embedding(ARTICLES, dim, padding_idx=0)  # costs time
        nn.init.normal_(self.articles.weight, std=0.1)
        self.attention = nn.Sequential(nn.Linear(dim, width), nn.Tanh(), nn.Linear(width, 1))
        self.reader = nn.Sequential(nn.Linear(dim, width), nn.ReLU(), nn.Linear(width, dim))
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, histories, candidates):
        read = self.articles(histories)
        scores = self.attention(read).squeeze(2).masked_fill(histories == 0, -1e9)
        pooled = (scores.softmax(dim=1).unsqueeze(1) @ read).squeeze(1)
        user = self.reader(pooled)
        return (self.articles(candidates) @ user.unsqueeze(2)).squeeze(2)

    def training_step(self, batch, batch_idx):
        histories, candidates = batch
        scores = self(histories, candidates)
        clicked = torch.zeros(len(scores), dtype=torch.long)
        loss = self.criterion(scores, clicked)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adagrad(self.parameters(), lr=0.1, initial_accumulator_value=0.1)


def make_impressions(count, seed):
    """Readers of one of 40 topics read articles of their topic, other articles are shown beside."""
    generator = torch.Generator().manual_seed(seed)
    topics = 40
    per_topic = (ARTICLES - 1) // topics

    def popular(*shape):  # few articles get most of the clicks
        return (torch.rand(*shape, generator=generator) ** 2 * per_topic).long()

    topic = torch.randint(0, topics, (count, 1), generator=generator)
    histories = 1 + topic * per_topic + popular(count, HISTORY)
    lengths = torch.randint(8, HISTORY + 1, (count, 1), generator=generator)
    histories = histories * (torch.arange(HISTORY) < lengths)
    shown = torch.randint(0, topics, (count, CANDIDATES), generator=generator)
    shown[:, 0] = topic[:, 0]
    candidates = 1 + shown * per_topic + popular(count, CANDIDATES)
    return Impressions(histories, candidates)


if __name__ == "__main__":
    lightning.seed_everything(29)
    impressions = make_impressions(26_624, seed=10)
    sampler = BatchSampler(RandomSampler(impressions), batch_size=256, drop_last=True)
    loader = DataLoader(impressions, batch_size=None, sampler=sampler)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(NewsRecommender(), loader)
