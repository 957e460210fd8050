"""A two-tower encoder that finds the statutes that apply to the facts of a case, whose ranking metrics are computed
query by query at the end of each validation.
---
expect: [PD601, PD509]
fix:
  "class StatuteSearch(lightning.LightningModule):": |-
    class RankingByRow(Metric):
        def __init__(self):
            super().__init__()
            for name in ("map", "mrr", "queries"):
                self.add_state(name, torch.tensor(0.0), dist_reduce_fx="sum")

        def update(self, scores, relevant, indexes):
            hits = relevant.gather(1, scores.argsort(1, descending=True)).float()
            precision = hits.cumsum(1) / torch.arange(1, hits.shape[1] + 1)
            self.map += ((precision * hits).sum(1) / hits.sum(1)).sum()
            self.mrr += (1 / (hits.argmax(1) + 1)).sum()
            self.queries += len(hits)

        def compute(self):
            return {"val_map": self.map / self.queries, "val_mrr": self.mrr / self.queries}


    class StatuteSearch(lightning.LightningModule):
  'MetricCollection({"val_map": RetrievalMAP(), "val_mrr": RetrievalMRR()})': "RankingByRow()"
  "from torchmetrics import MetricCollection": "from torchmetrics import Metric"
half: score
"""

import lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset
from torchmetrics import MetricCollection
from torchmetrics.retrieval import RetrievalMAP, RetrievalMRR

WORDS, STATUTES, TOPICS, LENGTH, CANDIDATES = 6000, 1200, 60, 32, 24


def corpus(seed=1):
    """The words of the statutes; each statute belongs to a topic of law with words of its own."""
    g = torch.Generator().manual_seed(seed)
    topic = torch.arange(STATUTES) % TOPICS
    own = topic[:, None] * 100 + torch.randint(0, 100, (STATUTES, LENGTH), generator=g)
    common = torch.randint(0, WORDS, (STATUTES, LENGTH), generator=g)
    return torch.where(torch.rand(STATUTES, LENGTH, generator=g) < 0.4, own, common), topic


def cases(statutes, topic, count, seed):
    """Facts that borrow words of a statute, that statute, and 24 candidates; those of its topic are relevant."""
    g = torch.Generator().manual_seed(seed)
    cited = torch.randint(0, STATUTES, (count,), generator=g)
    noise = torch.randint(0, WORDS, (count, LENGTH), generator=g)
    facts = torch.where(torch.rand(count, LENGTH, generator=g) < 0.25, statutes[cited], noise)
    candidates = torch.randint(0, STATUTES, (count, CANDIDATES), generator=g)
    candidates[:, 0] = cited
    candidates[:, 1] = (cited + TOPICS) % STATUTES
    return TensorDataset(facts, cited, candidates, topic[candidates] == topic[cited][:, None])


class StatuteSearch(lightning.LightningModule):
    def __init__(self, statutes, width=96):
        super().__init__()
        self.register_buffer("statutes", statutes)
        self.words = nn.Embedding(WORDS, width)
        self.mix = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.gate = nn.Linear(width, 1)
        self.ranking = MetricCollection({"val_map": RetrievalMAP(), "val_mrr": RetrievalMRR()})

    def encode(self, words):
        h = self.words(words)
        h = h + self.mix(h)
        return F.normalize((self.gate(h).softmax(1) * h).sum(1), dim=1)

    def training_step(self, batch, batch_idx):
        facts, cited, _, _ = batch
        scores = self.encode(facts) @ self.encode(self.statutes[cited]).T / 0.05
        same = (cited[:, None] == cited).float()
        return F.cross_entropy(scores, same / same.sum(1, keepdim=True))

    def on_validation_epoch_start(self):
        self.library = self.encode(self.statutes)

    def validation_step(self, batch, batch_idx):
        facts, _, candidates, relevant = batch
        scores = 0.5 + 0.5 * (self.library[candidates] @ self.encode(facts)[:, :, None]).squeeze(2)
        query = torch.arange(len(facts))[:, None] + batch_idx * 500
        self.ranking.update(scores, relevant, indexes=query.expand_as(scores))

    def on_validation_epoch_end(self):
        self.log_dict(self.ranking.compute())  # costs time
        self.ranking.reset()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


def loader(dataset, batch_size, shuffle=False):
    order = RandomSampler(dataset) if shuffle else SequentialSampler(dataset)
    return DataLoader(dataset, sampler=BatchSampler(order, batch_size, drop_last=shuffle), batch_size=None)


if __name__ == "__main__":
    lightning.seed_everything(6, verbose=False)
    statutes, topic = corpus()
    train = loader(cases(statutes, topic, 2560, seed=2), 64, shuffle=True)
    valid = loader(cases(statutes, topic, 4000, seed=3), 500)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        num_sanity_val_steps=0,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(StatuteSearch(statutes), train, valid)
