"""A click-through model for ads is trained with Adagrad, and its hashed embedding table of 400000 rows gets dense
gradients, so that each step writes and updates every row although a batch touches some thousands.
---
expect: PD322
fix:
  "nn.Embedding(FIELDS * BUCKETS, DIM)": "nn.Embedding(FIELDS * BUCKETS, DIM, sparse=True)"
half: score
"""

import lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIELDS, BUCKETS, DIM, NUMERIC = 10, 40_000, 16, 13


class Impressions(Dataset):
    """Hashed categories, numeric features and clicks in memory; a batch is one indexing operation."""

    def __init__(self, count):
        gen = torch.Generator().manual_seed(17)
        popular = torch.rand(count, FIELDS, generator=gen).pow(4)
        self.category = (popular * BUCKETS).long() + torch.arange(FIELDS) * BUCKETS
        self.numeric = torch.randn(count, NUMERIC, generator=gen)
        taste = torch.randn(FIELDS * BUCKETS, generator=gen)
        score = taste[self.category].mean(1) + 0.5 * self.numeric[:, :3].sum(1) - 1
        self.click = torch.bernoulli(torch.sigmoid(score), generator=gen)

    def __len__(self):
        return len(self.click)

    def __getitems__(self, index):
        return self.category[index], self.numeric[index], self.click[index]


def as_is(batch):
    return batch


class ClickRanker(lightning.LightningModule):
    """Wide numeric tower, all dot products of the embeddings, and a top network (DLRM style)."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(FIELDS * BUCKETS, DIM)
        nn.init.normal_(self.table.weight, std=0.05)
        self.bottom = nn.Sequential(nn.Linear(NUMERIC, 256), nn.ReLU(), nn.Linear(256, DIM))
        self.top = nn.Sequential(
            nn.Linear((FIELDS + 1) * (FIELDS + 1 + DIM), 512),
            nn.ReLU(),
            nn.Linear(512, 256),
            nn.ReLU(),
            nn.Linear(256, 1),
        )

    def forward(self, category, numeric):
        field = torch.cat([self.bottom(numeric)[:, None], self.table(category)], dim=1)
        dots = torch.bmm(field, field.transpose(1, 2))
        return self.top(torch.cat([dots, field], dim=2).flatten(1)).squeeze(1)

    def training_step(self, batch, batch_idx):
        category, numeric, click = batch
        return F.binary_cross_entropy_with_logits(self(category, numeric), click)

    def configure_optimizers(self):
        return torch.optim.Adagrad(self.parameters(), lr=0.02)


if __name__ == "__main__":
    lightning.seed_everything(4, verbose=False)
    loader = DataLoader(Impressions(80 * 1024), batch_size=1024, shuffle=True, collate_fn=as_is, drop_last=True)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(ClickRanker(), loader)
