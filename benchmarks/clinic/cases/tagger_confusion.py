r"""Named-entity tagging with a convolutional tagger and a confusion-matrix metric that counts token by token in Python.
---
expect: [PD304, PD509]
half: score
fix:
  ? "        for t, p in zip(target.view(-1), preds.view(-1), strict=False):"
  : "        n = self.confmat.shape[0]\n        pairs = target.reshape(-1) * n + preds.reshape(-1)"
  ? "            self.confmat[t.long(), p.long()] += 1  # costs time"
  : "        self.confmat += torch.bincount(pairs, minlength=n * n).view(n, n)"
"""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
from torchmetrics import Metric

TAGS = ["O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC"]


class TagConfusion(Metric):
    full_state_update = False

    def __init__(self, num_tags):
        super().__init__()
        self.add_state("confmat", torch.zeros(num_tags, num_tags, dtype=torch.long), dist_reduce_fx="sum")

    def update(self, preds, target):
        for t, p in zip(target.view(-1), preds.view(-1), strict=False):
            self.confmat[t.long(), p.long()] += 1  # costs time

    def compute(self):
        hits = self.confmat.diag().float()
        f1 = 2 * hits / (self.confmat.sum(0) + self.confmat.sum(1)).clamp(min=1)
        return f1[1:].mean()


class ConvTagger(LightningModule):
    def __init__(self, vocab=4000, dim=96):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.convs = nn.ModuleList(nn.Conv1d(dim, dim, 3, padding=d, dilation=d) for d in (1, 2, 4))
        self.norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, len(TAGS))
        self.train_conf = TagConfusion(len(TAGS))

    def forward(self, tokens):
        h = self.embed(tokens).transpose(1, 2)
        for conv in self.convs:
            h = h + F.gelu(conv(h))
        return self.out(self.norm(h.transpose(1, 2)))

    def training_step(self, batch, batch_idx):
        tokens, tags = batch
        logits = self(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1), tags.flatten())
        self.train_conf.update(logits.argmax(dim=-1), tags)
        self.log("train_loss", loss)
        return loss

    def on_train_epoch_end(self):
        self.log("train_f1", self.train_conf.compute())
        self.train_conf.reset()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=5e-4, fused=True)


def make_corpus(sentences=3200, length=40, vocab=4000):
    tokens = torch.randint(0, vocab, (sentences, length))
    tag_of = torch.where(torch.rand(vocab) < 0.7, 0, torch.randint(1, len(TAGS), (vocab,)))
    return tokens, tag_of[tokens]


if __name__ == "__main__":
    seed_everything(21)
    corpus = TensorDataset(*make_corpus())
    batches = BatchSampler(RandomSampler(corpus), batch_size=16, drop_last=True)
    loader = DataLoader(corpus, sampler=batches, batch_size=None)
    trainer = Trainer(
        max_epochs=4,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(ConvTagger(), loader)
