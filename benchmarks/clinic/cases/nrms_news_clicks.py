"""News recommendation from click histories: titles are encoded with self-attention, the reader is the
attended history, and the candidate titles are scored by dot product. The same popular titles are encoded
again and again.
---
expect: PD334
fix:
  ? |-
    vectors = self.title_encoder(self.titles[news.flatten()])  # costs time
            return vectors.view(*news.shape, -1)
  : |-
    distinct, position = news.unique(return_inverse=True)
            return self.title_encoder(self.titles[distinct])[position]
half: tune
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

ARTICLES, WORDS, TITLE_LENGTH = 800, 4000, 12
HISTORY, CANDIDATES = 20, 5


def make_articles():
    topic = torch.randint(0, 20, (ARTICLES, 1))
    titles = topic * 200 + torch.randint(0, 200, (ARTICLES, TITLE_LENGTH))
    return topic.squeeze(1), titles


def make_impressions(topic, count=2800):
    """Readers like three topics; what they see follows the popularity of the articles."""
    popularity = 1.0 / torch.arange(2, ARTICLES + 2)
    history = torch.empty(count, HISTORY, dtype=torch.long)
    candidates = torch.empty(count, CANDIDATES, dtype=torch.long)
    for row in range(count):
        liked = torch.isin(topic, torch.randint(0, 20, (3,)))
        clicks = torch.multinomial(popularity * liked, HISTORY + 1)
        history[row] = clicks[1:]
        candidates[row, 0] = clicks[0]
        candidates[row, 1:] = torch.multinomial(popularity * ~liked, CANDIDATES - 1)
    return history, candidates


class AttentionPool(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.score = nn.Sequential(nn.Linear(dim, 32), nn.Tanh(), nn.Linear(32, 1, bias=False))

    def forward(self, x):
        weight = self.score(x).softmax(1)
        return (weight.transpose(1, 2) @ x).squeeze(1)


class SequenceEncoder(nn.Module):
    """Multi-head self-attention followed by additive attention, as in NRMS."""

    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.pool = AttentionPool(dim)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v)
        return self.pool(attended.transpose(1, 2).flatten(2))


class NewsRecommender(L.LightningModule):
    def __init__(self, titles, dim=48):
        super().__init__()
        self.register_buffer("titles", titles)
        self.title_encoder = nn.Sequential(nn.Embedding(WORDS, dim), SequenceEncoder(dim))
        self.reader_encoder = SequenceEncoder(dim)

    def encode(self, news):
        vectors = self.title_encoder(self.titles[news.flatten()])  # costs time
        return vectors.view(*news.shape, -1)

    def forward(self, history, candidates):
        vectors = self.encode(torch.cat([history, candidates], dim=1))
        clicked, offered = vectors.split([HISTORY, CANDIDATES], dim=1)
        reader = self.reader_encoder(clicked)
        return (offered @ reader.unsqueeze(2)).squeeze(2)

    def training_step(self, batch, batch_idx):
        history, candidates = batch
        scores = self(history, candidates)
        loss = F.cross_entropy(scores, scores.new_zeros(len(scores), dtype=torch.long))
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3, fused=True)


if __name__ == "__main__":
    L.seed_everything(3)
    topic, titles = make_articles()
    impressions = TensorDataset(*make_impressions(topic))
    batches = BatchSampler(RandomSampler(impressions), batch_size=40, drop_last=True)
    loader = DataLoader(impressions, sampler=batches, batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(NewsRecommender(titles), loader)
