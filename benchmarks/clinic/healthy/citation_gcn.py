"""Full-graph node classification on a synthetic citation network with a two-layer GCN; the normalized adjacency is a
sparse CSR matrix built once.
---
half: score
"""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader

NODES, FEATURES, TOPICS = 3000, 256, 7


def make_citations(mean_degree=6):
    gen = torch.Generator().manual_seed(0)
    topic = torch.randint(0, TOPICS, (NODES,), generator=gen)
    order = torch.argsort(topic)
    src = torch.randint(0, NODES, (NODES * mean_degree // 2,), generator=gen)
    near = (src + torch.randint(-150, 151, src.shape, generator=gen)) % NODES
    src, dst = order[src], order[near]
    prototypes = torch.randn(TOPICS, FEATURES, generator=gen)
    features = 0.2 * prototypes[topic] + torch.randn(NODES, FEATURES, generator=gen)
    return torch.stack([torch.cat([src, dst]), torch.cat([dst, src])]), features, topic


def normalized_adjacency(edges):
    loops = torch.arange(NODES).repeat(2, 1)
    edges = torch.unique(torch.cat([edges, loops], dim=1), dim=1)
    degree = torch.bincount(edges[0], minlength=NODES).float()
    weight = (degree[edges[0]] * degree[edges[1]]).rsqrt()
    return torch.sparse_coo_tensor(edges, weight, (NODES, NODES)).coalesce().to_sparse_csr()


class Propagate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, adj, h):
        ctx.adj = adj
        return adj @ h

    @staticmethod
    def backward(ctx, grad):
        return None, ctx.adj @ grad  # the adjacency is symmetric


class CitationGCN(LightningModule):
    def __init__(self, adj, features, topic, hidden=128):
        super().__init__()
        self.adj, self.topic = adj, topic
        self.features = adj @ features
        self.lin1 = nn.Linear(FEATURES, hidden)
        self.lin2 = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, TOPICS)

    def forward(self):
        h = F.relu(self.lin1(self.features))
        h = F.relu(Propagate.apply(self.adj, self.lin2(h)))
        return self.out(h)

    def training_step(self, train_nodes, batch_idx):
        loss = F.cross_entropy(self()[train_nodes], self.topic[train_nodes])
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=5e-3, weight_decay=5e-4, fused=True)


if __name__ == "__main__":
    seed_everything(19)
    edges, features, topic = make_citations()
    splits = [torch.randperm(NODES)[:2000] for _ in range(100)]
    loader = DataLoader(splits, batch_size=None, shuffle=True)
    trainer = Trainer(
        accelerator="cpu", max_epochs=5, enable_progress_bar=False, enable_checkpointing=False, logger=False
    )
    trainer.fit(CitationGCN(normalized_adjacency(edges), features, topic), loader)
