"""A convolutional network labels the secondary structure of proteins; each batch also carries the annotation objects
of its chains.
---
expect: PD205
fix:
  '"chains": [self.chains[i] for i in indices],': ''
half: score
"""

from dataclasses import dataclass

import lightning
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

AMINO_ACIDS = 20
STATES = 3
MAX_RESIDUES = 160
IGNORE = -100


@dataclass
class Helix:
    start: int
    stop: int
    kind: str


@dataclass
class Chain:
    identifier: str
    helices: list[Helix]
    residue_numbers: list[int]


def make_proteins(n, seed):
    """Padded sequences, their labels from a windowed propensity, and the annotation of each chain."""
    g = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, AMINO_ACIDS + 1, (n, MAX_RESIDUES), generator=g)
    length = torch.randint(MAX_RESIDUES // 2, MAX_RESIDUES + 1, (n, 1), generator=g)
    propensity = torch.randn(AMINO_ACIDS + 1, STATES, generator=torch.Generator().manual_seed(0))
    smooth = F.avg_pool1d(propensity[tokens].transpose(1, 2), 7, stride=1, padding=3)
    labels = smooth.argmax(dim=1)
    padding = torch.arange(MAX_RESIDUES) >= length
    helix = F.pad((labels == 0) & ~padding, (1, 1)).int().diff(dim=1)
    chains = []
    for i in range(n):
        starts = (helix[i] == 1).nonzero().squeeze(1).tolist()
        stops = (helix[i] == -1).nonzero().squeeze(1).tolist()
        helices = [Helix(start, stop, "alpha") for start, stop in zip(starts, stops, strict=True)]
        chains.append(Chain(f"{seed}{i:05d}A", helices, list(range(1, int(length[i]) + 1))))
    return tokens.masked_fill(padding, 0), labels.masked_fill(padding, IGNORE), chains


class Proteins(Dataset):
    def __init__(self, n, seed):
        self.tokens, self.labels, self.chains = make_proteins(n, seed)

    def __len__(self):
        return len(self.tokens)

    def __getitems__(self, indices):
        return {
            "tokens": self.tokens[indices],
            "labels": self.labels[indices],
            "chains": [self.chains[i] for i in indices],  # costs time
        }


def as_is(batch):
    return batch


class StructureTagger(lightning.LightningModule):
    def __init__(self, width=48, depth=3):
        super().__init__()
        self.embedding = nn.Embedding(AMINO_ACIDS + 1, width, padding_idx=0)
        layers = []
        for _ in range(depth):
            layers += [nn.Conv1d(width, width, 7, padding=3), nn.BatchNorm1d(width), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Conv1d(width, STATES, 1)

    def forward(self, tokens):
        return self.head(self.body(self.embedding(tokens).transpose(1, 2)))

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch["tokens"]), batch["labels"], ignore_index=IGNORE)

    def validation_step(self, batch, batch_idx):
        scores, labels = self(batch["tokens"]), batch["labels"]
        known = labels != IGNORE
        accuracy = (scores.argmax(dim=1) == labels)[known].float().mean()
        self.log("val_q3", accuracy, batch_size=len(labels))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


def main():
    lightning.seed_everything(21)
    train, val = Proteins(2_400, seed=1), Proteins(320, seed=2)
    model = StructureTagger()
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        model,
        DataLoader(train, batch_size=24, shuffle=True, collate_fn=as_is),
        DataLoader(val, batch_size=64, collate_fn=as_is),
    )
    print(f"three-state accuracy {trainer.callback_metrics['val_q3']:.3f}")


if __name__ == "__main__":
    main()
