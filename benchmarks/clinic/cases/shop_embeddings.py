"""The large embedding tables of a recommender get dense gradients, though a batch looks up few of their rows.
---
expect:
- PD322
half: tune
fix:
  'nn.Embedding(N_USERS, DIM)': 'nn.Embedding(N_USERS, DIM, sparse=True)'
  'nn.Embedding(N_ITEMS, DIM)': 'nn.Embedding(N_ITEMS, DIM, sparse=True)'
  'fused=True': 'fused=False'
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

N_USERS = 300_000
N_ITEMS = 100_000
DIM = 32


def make_purchases(n):
    generator = torch.Generator().manual_seed(0)
    users = torch.randint(0, N_USERS, (n,), generator=generator)
    items = torch.randint(0, N_ITEMS, (n,), generator=generator)
    return users, items, ((users + items) % 3 == 0).float()


class TwoTowers(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(N_USERS, DIM)
        self.items = nn.Embedding(N_ITEMS, DIM)
        self.user_tower = nn.Sequential(nn.Linear(DIM, 128), nn.ReLU(), nn.Linear(128, 64))
        self.item_tower = nn.Sequential(nn.Linear(DIM, 128), nn.ReLU(), nn.Linear(128, 64))

    def training_step(self, batch, batch_idx):
        users, items, bought = batch
        user = self.user_tower(self.users(users))
        item = self.item_tower(self.items(items))
        loss = F.binary_cross_entropy_with_logits((user * item).sum(dim=1) / 8, bought)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adagrad(self.parameters(), lr=0.02, fused=True)


L.seed_everything(1)
purchases = TensorDataset(*make_purchases(102_400))
loader = DataLoader(purchases, batch_size=None, sampler=BatchSampler(RandomSampler(purchases), 1024, drop_last=False))
trainer = L.Trainer(
    accelerator="cpu",
    max_epochs=3,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(TwoTowers(), loader)
