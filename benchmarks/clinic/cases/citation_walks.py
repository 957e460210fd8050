"""Node embeddings of a citation graph are learned from random walks by skip-gram with negative sampling. The two large
embedding tables get dense gradients, most of whose rows are zero.
---
expect: PD322
fix:
  ? "        self.center = nn.Embedding(nodes, size)"
  : "        self.center = nn.Embedding(nodes, size, sparse=True)"
  ? "        self.context = nn.Embedding(nodes, size)"
  : "        self.context = nn.Embedding(nodes, size, sparse=True)"
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

NODES, COMMUNITY, NEGATIVES = 50_000, 200, 5


class NodeEmbeddings(L.LightningModule):
    def __init__(self, nodes=NODES, size=64, lr=0.05):
        super().__init__()
        self.lr = lr
        self.center = nn.Embedding(nodes, size)
        self.context = nn.Embedding(nodes, size)
        nn.init.uniform_(self.center.weight, -0.5 / size, 0.5 / size)
        nn.init.uniform_(self.context.weight, -0.5 / size, 0.5 / size)

    def score(self, center, context):
        return torch.einsum("bd,bkd->bk", self.center(center), self.context(context))

    def training_step(self, batch, batch_idx):
        center, context = batch
        negative = torch.randint(0, NODES, (len(center), NEGATIVES), device=self.device)
        scores = self.score(center, torch.cat([context[:, None], negative], dim=1))
        loss = -(F.logsigmoid(scores[:, 0]) + F.logsigmoid(-scores[:, 1:]).sum(dim=1)).mean()
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        center, context = batch
        other = torch.randint(0, NODES, context.shape, device=self.device)
        scores = self.score(center, torch.stack([context, other], dim=1))
        self.log("val_auc", (scores[:, 0] > scores[:, 1]).float().mean(), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.Adagrad(self.parameters(), lr=self.lr)


def walk_graph(walks, length, window):
    """Walks that mostly stay within a community of papers; returns pairs of nodes at most `window` steps apart."""
    position = torch.randint(0, NODES, (walks,))
    path = [position]
    for _ in range(length - 1):
        inside = position // COMMUNITY * COMMUNITY + torch.randint(0, COMMUNITY, (walks,))
        position = torch.where(torch.rand(walks) < 0.9, inside, torch.randint(0, NODES, (walks,)))
        path.append(position)
    path = torch.stack(path, dim=1)
    center = torch.cat([path[:, :-gap].flatten() for gap in range(1, window + 1)])
    context = torch.cat([path[:, gap:].flatten() for gap in range(1, window + 1)])
    return TensorDataset(center, context)


def batches(pairs, size):
    order = BatchSampler(RandomSampler(pairs), size, drop_last=True)
    return DataLoader(pairs, sampler=order, batch_size=None)


if __name__ == "__main__":
    L.seed_everything(8)
    train, val = walk_graph(walks=4200, length=12, window=2), walk_graph(walks=400, length=8, window=1)
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=3, logger=False, enable_checkpointing=False, enable_model_summary=False
    )
    trainer.fit(NodeEmbeddings(), batches(train, 1024), batches(val, 1024))
