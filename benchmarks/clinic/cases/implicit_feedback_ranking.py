"""A two-tower ranking model learns from implicit feedback of synthetic users on a large catalog. The embedding tables
give dense gradients, so that every step fills and applies a gradient for all rows, though a batch touches few of them.
---
expect: PD322
half: score
fix:
  "self.user_table = nn.Embedding(users, dim)": "self.user_table = nn.Embedding(users, dim, sparse=True)"
  "self.item_table = nn.Embedding(items, dim)": "self.item_table = nn.Embedding(items, dim, sparse=True)"
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

USERS = 200_000
ITEMS = 300_000
INTERACTIONS = 155_000


class Interactions(Dataset):
    """(user, item bought) pairs; popular items are more frequent. Negatives are drawn per batch."""

    def __init__(self, count, seed):
        gen = torch.Generator().manual_seed(seed)
        self.users = torch.randint(USERS, (count,), generator=gen)
        taste = (self.users * 7919) % ITEMS
        spread = (torch.rand(count, generator=gen) ** 3 * ITEMS * 0.05).long()
        self.items = (taste + spread) % ITEMS
        popular = torch.rand(count, generator=gen) < 0.5
        self.items[popular] = self.items[popular] % 2000

    def __len__(self):
        return len(self.users)

    def __getitems__(self, indices):
        indices = torch.as_tensor(indices)
        negatives = torch.randint(ITEMS, (len(indices),))
        return self.users[indices], self.items[indices], negatives


def keep(batch):
    return batch


class TwoTower(L.LightningModule):
    def __init__(self, users=USERS, items=ITEMS, dim=48, table_lr=400.0, tower_lr=0.2):
        super().__init__()
        self.save_hyperparameters()
        self.user_table = nn.Embedding(users, dim)
        self.item_table = nn.Embedding(items, dim)
        self.user_tower = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, dim))
        self.item_tower = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, dim))
        nn.init.normal_(self.user_table.weight, std=0.05)
        nn.init.normal_(self.item_table.weight, std=0.05)

    def margin(self, batch):
        """How much higher each user scores the item that was bought than the other one."""
        users, liked, other = batch
        user = self.user_tower(self.user_table(users))
        items = self.item_tower(self.item_table(torch.cat([liked, other])))
        liked, other = items.chunk(2)
        return (user * (liked - other)).sum(-1)

    def training_step(self, batch, batch_idx):
        loss = -F.logsigmoid(self.margin(batch)).mean()
        self.log("train_bpr", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_auc", (self.margin(batch) > 0).float().mean(), batch_size=len(batch[0]))

    def configure_optimizers(self):
        tables = [self.user_table.weight, self.item_table.weight]
        towers = [*self.user_tower.parameters(), *self.item_tower.parameters()]
        return torch.optim.SGD(
            [
                {"params": tables, "lr": self.hparams.table_lr},
                {"params": towers, "lr": self.hparams.tower_lr},
            ]
        )


if __name__ == "__main__":
    L.seed_everything(2)
    train_loader = DataLoader(Interactions(INTERACTIONS, 1), batch_size=4096, shuffle=True, collate_fn=keep)
    val_loader = DataLoader(Interactions(20_000, 2), batch_size=4096, collate_fn=keep)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=4,
        log_every_n_steps=20,
        enable_checkpointing=False,
    )
    trainer.fit(TwoTower(), train_loader, val_loader)
    print("validation auc", float(trainer.callback_metrics["val_auc"]))
