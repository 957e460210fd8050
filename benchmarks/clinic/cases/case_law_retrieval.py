"""Trains a two-tower model that ranks precedents for a legal question (bag-of-words towers, in-batch softmax); the
validation computes the mean average precision with torchmetrics' RetrievalMAP, which evaluates thousands of
questions one by one.
---
expect: [PD509, PD601]
fix:
  ? |2-
            self.val_map = RetrievalMAP()
  : |2-
            self.average_precision = []
  ? |2-
            question_id = torch.arange(len(scores)) + batch_idx * VAL_BATCH
            self.val_map.update(scores.flatten(), relevant.flatten(), indexes=question_id.repeat_interleave(CANDIDATES))
  : |2-
            hits = relevant.gather(1, scores.argsort(1, descending=True)).float()
            precision = hits.cumsum(1) / torch.arange(1, CANDIDATES + 1)
            self.average_precision.append((precision * hits).sum(1) / hits.sum(1).clamp(min=1))
  ? |2-
            self.log("val_map", self.val_map.compute())  # costs time
            self.val_map.reset()
  : |2-
            self.log("val_map", torch.cat(self.average_precision).mean())
            self.average_precision.clear()
half: score
"""

import lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics.retrieval import RetrievalMAP

VOCABULARY, WORDS, CANDIDATES, VAL_BATCH = 4000, 40, 12, 500


def write_texts(topics: torch.Tensor, gen: torch.Generator) -> torch.Tensor:
    """Draws the words of texts: half of them from a window of the vocabulary that belongs to the topic."""
    shape = (*topics.shape, WORDS)
    special = topics[..., None] * 10 + torch.randint(20, shape, generator=gen)
    common = torch.randint(VOCABULARY, shape, generator=gen)
    return torch.where(torch.rand(shape, generator=gen) < 0.5, special, common)


class QuestionPairs(Dataset):
    def __init__(self, count: int, seed: int):
        gen = torch.Generator().manual_seed(seed)
        topics = torch.randint(390, (count,), generator=gen)
        self.tensors = (write_texts(topics, gen), write_texts(topics, gen))

    def __len__(self):
        return len(self.tensors[0])

    def __getitems__(self, indices):
        index = torch.as_tensor(indices)
        return tuple(t[index] for t in self.tensors)


class RankedQuestions(QuestionPairs):
    """Questions with a fixed number of candidates, of which the first four (before shuffling by score) are relevant."""

    def __init__(self, count: int, seed: int):
        gen = torch.Generator().manual_seed(seed)
        topics = torch.randint(390, (count,), generator=gen)
        candidates = torch.randint(390, (count, CANDIDATES), generator=gen)
        candidates[:, :4] = topics[:, None]
        self.tensors = (write_texts(topics, gen), write_texts(candidates, gen), candidates == topics[:, None])


def as_is(batch):
    return batch


class Tower(nn.Module):
    def __init__(self, width: int = 256):
        super().__init__()
        self.words = nn.EmbeddingBag(VOCABULARY, 64, mode="mean")
        self.mlp = nn.Sequential(
            nn.Linear(64, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 96)
        )

    def forward(self, words):
        return F.normalize(self.mlp(self.words(words.flatten(0, -2))), dim=1).unflatten(0, words.shape[:-1])


class PrecedentRanker(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.question, self.precedent = Tower(), Tower()
        self.val_map = RetrievalMAP()

    def training_step(self, batch, batch_idx):
        question, precedent = batch
        logits = 15 * self.question(question) @ self.precedent(precedent).T
        return F.cross_entropy(logits, torch.arange(len(logits)))

    def validation_step(self, batch, batch_idx):
        question, candidates, relevant = batch
        scores = torch.einsum("qd,qcd->qc", self.question(question), self.precedent(candidates))
        question_id = torch.arange(len(scores)) + batch_idx * VAL_BATCH
        self.val_map.update(scores.flatten(), relevant.flatten(), indexes=question_id.repeat_interleave(CANDIDATES))

    def on_validation_epoch_end(self):
        self.log("val_map", self.val_map.compute())  # costs time
        self.val_map.reset()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3, fused=True)


if __name__ == "__main__":
    lightning.seed_everything(5, verbose=False)
    train = DataLoader(QuestionPairs(512 * 50, seed=1), batch_size=512, shuffle=True, collate_fn=as_is)
    valid = DataLoader(RankedQuestions(6000, seed=2), batch_size=VAL_BATCH, collate_fn=as_is)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(PrecedentRanker(), train, valid)
