"""A two-layer graph convolutional encoder with a bilinear decoder predicts missing protein-protein interactions. The
normalized adjacency of 1800 proteins, of whose entries less than one in a hundred is set, is kept as a dense matrix.
---
expect: PD330
fix:
  'self.register_buffer("adjacency", adjacency)': 'self.register_buffer("adjacency", adjacency.to_sparse().coalesce())'
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

PROTEINS = 1800
FAMILIES = 30
FEATURES = 96


def make_interactome():
    """Proteins of the same family interact often, others rarely; features are noisy family profiles."""
    family = torch.randint(0, FAMILIES, (PROTEINS,))
    same = family[:, None] == family[None, :]
    rate = torch.where(same, 0.12, 0.0015)
    upper = torch.triu(torch.rand(PROTEINS, PROTEINS) < rate, diagonal=1)
    edges = upper.nonzero()
    features = torch.randn(FAMILIES, FEATURES)[family] + 1.5 * torch.randn(PROTEINS, FEATURES)
    return edges[torch.randperm(len(edges))], features


def normalize(edges):
    """Symmetrically normalized adjacency with self-loops."""
    adjacency = torch.eye(PROTEINS)
    adjacency[edges[:, 0], edges[:, 1]] = 1
    adjacency[edges[:, 1], edges[:, 0]] = 1
    scale = adjacency.sum(1).rsqrt()
    return scale[:, None] * adjacency * scale[None, :]


class GraphConv(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.linear = nn.Linear(d_in, d_out, bias=False)
        self.bias = nn.Parameter(torch.zeros(d_out))

    def forward(self, adjacency, x):
        return adjacency @ self.linear(x) + self.bias  # costs time


class InteractionGCN(L.LightningModule):
    def __init__(self, adjacency, features, hidden=64, embedding=48, rank=24):
        super().__init__()
        self.register_buffer("adjacency", adjacency)
        self.register_buffer("features", features)
        self.conv1 = GraphConv(FEATURES, hidden)
        self.conv2 = GraphConv(hidden, embedding)
        self.norm = nn.LayerNorm(hidden)
        self.left = nn.Linear(embedding, rank)
        self.decoder = nn.Sequential(nn.Linear(2 * embedding, 64), nn.ReLU(), nn.Linear(64, 1))

    def encode(self):
        x = F.dropout(self.features, 0.2, self.training)
        x = torch.relu(self.norm(self.conv1(self.adjacency, x)))
        return self.conv2(self.adjacency, F.dropout(x, 0.2, self.training))

    def score(self, z, pairs):
        a, b = z[pairs[:, 0]], z[pairs[:, 1]]
        bilinear = (self.left(a) * self.left(b)).sum(1)
        return bilinear + self.decoder(torch.cat([a * b, (a - b).abs()], dim=1)).squeeze(1)

    def step(self, positive):
        negative = torch.randint(0, PROTEINS, (len(positive), 2), device=positive.device)
        scores = self.score(self.encode(), torch.cat([positive, negative]))
        target = torch.zeros_like(scores)
        target[: len(positive)] = 1
        return F.binary_cross_entropy_with_logits(scores, target)

    def training_step(self, positive, batch_idx):
        loss = self.step(positive)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, positive, batch_idx):
        self.log("val_loss", self.step(positive), batch_size=len(positive))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=5e-3, fused=True)


def main():
    L.seed_everything(21)
    edges, features = make_interactome()
    held_out = len(edges) // 10
    val, train = edges[:held_out], edges[held_out:]
    trainer = L.Trainer(
        accelerator="cpu",
        max_steps=200,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(
        InteractionGCN(normalize(train), features),
        DataLoader(train.split(512), batch_size=None, shuffle=True),
        DataLoader([val], batch_size=None),
    )


if __name__ == "__main__":
    main()
