"""Node classification on a citation graph with a two-layer GraphSAGE on a sparse (CSR) adjacency matrix, full graph at
each step.
---
half: score
"""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, Dataset

N_PAPERS = 3000
N_WORDS = 256
N_TOPICS = 6


def make_graph(n_links=18_000):
    gen = torch.Generator().manual_seed(31)
    topic = torch.randint(0, N_TOPICS, (N_PAPERS,), generator=gen)
    src = torch.randint(0, N_PAPERS, (n_links,), generator=gen)
    dst = torch.randint(0, N_PAPERS, (n_links,), generator=gen)
    keep = (topic[src] == topic[dst]) | (torch.rand(n_links, generator=gen) < 0.2)
    src, dst = src[keep], dst[keep]
    index = torch.stack([torch.cat([src, dst]), torch.cat([dst, src])])
    degree = torch.bincount(index[0], minlength=N_PAPERS).clamp(min=1).float()
    # symmetric normalization: the matrix equals its transpose
    weight = degree[index[0]].rsqrt() * degree[index[1]].rsqrt()
    adjacency = torch.sparse_coo_tensor(index, weight, (N_PAPERS, N_PAPERS)).coalesce().to_sparse_csr()
    centres = torch.randn(N_TOPICS, N_WORDS, generator=gen)
    words = centres[topic] + 3.0 * torch.randn(N_PAPERS, N_WORDS, generator=gen)
    return adjacency, words, topic


class Propagate(torch.autograd.Function):
    """A @ h for a symmetric A, so that the backward is the same product."""

    @staticmethod
    def forward(ctx, adjacency, h):
        ctx.adjacency = adjacency
        return adjacency @ h

    @staticmethod
    def backward(ctx, grad):
        return None, ctx.adjacency @ grad


class TrainNodes(Dataset):
    """One item per step: a random half of the labelled papers."""

    def __init__(self, steps=90):
        self.steps = steps

    def __len__(self):
        return self.steps

    def __getitem__(self, i):
        return torch.randperm(N_PAPERS)[: N_PAPERS // 2]


class GraphSAGE(LightningModule):
    def __init__(self, adjacency, words, topic, hidden=96):
        super().__init__()
        self.adjacency, self.topic = adjacency, topic
        # the first layer's neighbourhood mean does not depend on the weights
        self.features = torch.cat([words, adjacency @ words], dim=1)
        self.first = nn.Linear(2 * N_WORDS, hidden)
        self.own = nn.Linear(hidden, hidden)
        self.neighbors = nn.Linear(hidden, hidden, bias=False)
        self.head = nn.Linear(hidden, N_TOPICS)

    def forward(self):
        h = F.relu(self.first(self.features))
        h = F.relu(self.own(h) + Propagate.apply(self.adjacency, self.neighbors(h)))
        return self.head(h)

    def training_step(self, nodes, batch_idx):
        loss = F.cross_entropy(self()[nodes], self.topic[nodes])
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=5e-3, weight_decay=5e-4, fused=True)


if __name__ == "__main__":
    seed_everything(19)
    loader = DataLoader(TrainNodes(), batch_size=None, shuffle=True)
    trainer = Trainer(
        accelerator="cpu", max_epochs=4, enable_progress_bar=False, enable_checkpointing=False, logger=False
    )
    trainer.fit(GraphSAGE(*make_graph()), loader)
