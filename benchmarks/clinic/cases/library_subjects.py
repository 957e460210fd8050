"""A bag of hashed words and word pairs assigns the titles of a library's catalogue to subjects, trained with Adagrad.
Only a few thousand of the 200,000 hash buckets occur in a batch, but the embedding gives a dense gradient, so every
step fills a gradient for the whole table and the optimizer reads and writes all of it.
---
expect: PD322
fix:
  ? |2-
            self.bag = nn.EmbeddingBag(BUCKETS, width, mode="mean")
  : |2-
            self.bag = nn.EmbeddingBag(BUCKETS, width, mode="mean", sparse=True)
  ? |2-
            return torch.optim.Adagrad(self.parameters(), lr=self.lr, fused=True)
  : |2-
            return torch.optim.Adagrad(self.parameters(), lr=self.lr)
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

BUCKETS = 200_000
SUBJECTS = 24
WORDS = 14


def hashed(first, second):
    """Bucket of a pair of words."""
    return (first * 1_000_003 + second * 69_069 + 12_345) % BUCKETS


class Catalogue(Dataset):
    """Titles as hash buckets of their words and word pairs, already padded to the same number."""

    def __init__(self, titles, vocabulary=30_000):
        self.subject = torch.randint(0, SUBJECTS, (titles,))
        special = torch.randint(0, vocabulary, (SUBJECTS, 800))
        common = (vocabulary * torch.rand(titles, WORDS).pow(3)).long()
        pick = torch.randint(0, 800, (titles, WORDS))
        typical = special[self.subject.unsqueeze(1), pick]
        words = torch.where(torch.rand(titles, WORDS) < 0.45, typical, common)
        pairs = hashed(words[:, :-1], words[:, 1:])
        self.tokens = torch.cat((hashed(words, torch.zeros_like(words)), pairs), 1)

    def __len__(self):
        return len(self.subject)

    def __getitems__(self, rows):
        rows = torch.as_tensor(rows)
        return self.tokens[rows], self.subject[rows]


class SubjectModel(L.LightningModule):
    def __init__(self, width=32, lr=0.05):
        super().__init__()
        self.lr = lr
        self.bag = nn.EmbeddingBag(BUCKETS, width, mode="mean")
        self.head = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 192),
            nn.ReLU(),
            nn.Linear(192, 192),
            nn.ReLU(),
            nn.Linear(192, SUBJECTS),
        )

    def forward(self, tokens):
        return self.head(self.bag(tokens))

    def training_step(self, batch, batch_idx):
        tokens, subject = batch
        return F.cross_entropy(self(tokens), subject)

    def configure_optimizers(self):
        # a step of its own for each bucket: rare words keep a large one
        return torch.optim.Adagrad(self.parameters(), lr=self.lr, fused=True)


def identity(batch):
    return batch


def main():
    L.seed_everything(29)
    catalogue = Catalogue(24_000)
    loader = DataLoader(catalogue, batch_size=128, shuffle=True, drop_last=True, collate_fn=identity)
    model = SubjectModel()
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader)
    model.eval()
    with torch.inference_mode():
        right = (model(catalogue.tokens[:5000]).argmax(1) == catalogue.subject[:5000]).float().mean()
    print(f"right subject: {right:.3f}")


if __name__ == "__main__":
    main()
