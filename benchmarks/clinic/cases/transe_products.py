"""TransE embeddings of a product knowledge graph with sparse gradients; entity vectors are kept at unit
length after each step, as in the paper. All of them are normalized, not only those that the step has moved.
---
expect: PD504
fix:
  ? |-
    def on_train_batch_end(self, outputs, batch, batch_idx):
            self.entity.weight.copy_(F.normalize(self.entity.weight, dim=1))  # costs time
  : |-
    def on_train_batch_end(self, outputs, batch, batch_idx):
            triples, negatives = batch
            moved = torch.cat([triples[:, 0], triples[:, 2], negatives.flatten()])
            self.entity.weight[moved] = F.normalize(self.entity.weight[moved], dim=1)
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

ENTITIES, RELATIONS, NEGATIVES = 100_000, 24, 8


class ProductGraph(Dataset):
    """Triples (head, relation, tail) from a hidden translation between clusters of entities."""

    def __init__(self, count):
        head = torch.randint(0, ENTITIES, (count,))
        relation = torch.randint(0, RELATIONS, (count,))
        tail = (head + 4000 * (relation + 1) + torch.randint(-20, 20, (count,))) % ENTITIES
        self.triples = torch.stack([head, relation, tail], dim=1)

    def __len__(self):
        return len(self.triples)

    def __getitem__(self, rows):
        triples = self.triples[rows]
        return triples, torch.randint(0, ENTITIES, (len(triples), NEGATIVES))


class TransE(L.LightningModule):
    def __init__(self, dim=64, margin=1.0):
        super().__init__()
        self.margin = margin
        self.entity = nn.Embedding(ENTITIES, dim, sparse=True)
        self.relation = nn.Embedding(RELATIONS, dim)
        with torch.no_grad():
            self.entity.weight.copy_(F.normalize(self.entity.weight, dim=1))
            self.relation.weight.copy_(F.normalize(self.relation.weight, dim=1))

    def forward(self, triples, negatives):
        """Distances of the true tails, and of the negative ones."""
        head, relation, tail = triples.unbind(1)
        expected = (self.entity(head) + self.relation(relation)).unsqueeze(1)
        tails = self.entity(torch.cat([tail.unsqueeze(1), negatives], dim=1))
        distance = torch.linalg.vector_norm(expected - tails, dim=2)
        return distance[:, :1], distance[:, 1:]

    def training_step(self, batch, batch_idx):
        near, far = self(*batch)
        loss = F.relu(self.margin + near - far).mean()
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(near))
        return loss

    @torch.no_grad()
    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.entity.weight.copy_(F.normalize(self.entity.weight, dim=1))  # costs time

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=20.0)


if __name__ == "__main__":
    L.seed_everything(13)
    graph = ProductGraph(100_000)
    batches = BatchSampler(RandomSampler(graph), batch_size=500, drop_last=True)
    loader = DataLoader(graph, sampler=batches, batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(TransE(), loader)
