"""Matrix factorization with a BPR loss on implicit feedback; the two large embedding tables have dense gradients, so
that Adam updates every row at every step.
---
expect: PD322
half: score
fix:
  ? "self.user_factors = nn.Embedding(n_users, dim)"
  : "self.user_factors = nn.Embedding(n_users, dim, sparse=True)"
  ? "self.item_factors = nn.Embedding(n_items, dim)"
  : "self.item_factors = nn.Embedding(n_items, dim, sparse=True)"
  ? "torch.optim.Adam(self.parameters(), lr=2e-3, fused=True)"
  : "torch.optim.SparseAdam(self.parameters(), lr=2e-3)"
"""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

N_USERS = 100_000
N_ITEMS = 50_000


class Interactions(Dataset):
    """(user, watched movie) pairs; an index may be a whole list of pairs."""

    def __init__(self, n_pairs=50_000):
        gen = torch.Generator().manual_seed(0)
        self.users = torch.randint(0, N_USERS, (n_pairs,), generator=gen)
        popularity = torch.rand(n_pairs, generator=gen) ** 3
        self.items = (popularity * N_ITEMS).long().clamp_(max=N_ITEMS - 1)

    def __len__(self):
        return len(self.users)

    def __getitem__(self, index):
        return self.users[index], self.items[index]


class BPR(LightningModule):
    def __init__(self, n_users=N_USERS, n_items=N_ITEMS, dim=32, reg=1e-4):
        super().__init__()
        self.user_factors = nn.Embedding(n_users, dim)
        self.item_factors = nn.Embedding(n_items, dim)
        nn.init.normal_(self.user_factors.weight, std=0.05)
        nn.init.normal_(self.item_factors.weight, std=0.05)
        self.n_items = n_items
        self.reg = reg

    def training_step(self, batch, batch_idx):
        users, positives = batch
        negatives = torch.randint_like(positives, self.n_items)
        u = self.user_factors(users)
        p = self.item_factors(positives)
        n = self.item_factors(negatives)
        margin = (u * (p - n)).sum(dim=1)
        penalty = u.square().sum() + p.square().sum() + n.square().sum()
        loss = -F.logsigmoid(margin).mean() + self.reg * penalty / len(users)
        self.log("bpr_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3, fused=True)


def main():
    seed_everything(11)
    pairs = Interactions()
    batches = BatchSampler(RandomSampler(pairs), batch_size=512, drop_last=True)
    loader = DataLoader(pairs, sampler=batches, batch_size=None)
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=7,
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=False,
    )
    trainer.fit(BPR(), loader)


if __name__ == "__main__":
    main()
