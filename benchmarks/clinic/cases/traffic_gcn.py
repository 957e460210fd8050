"""Traffic forecast with a graph convolution network; the normalized adjacency of the fixed road graph is rebuilt by
networkx in every forward.
---
expect: PD511
half: tune
fix:
  ? "        self.graph = graph"
  : |2-
            laplacian = nx.normalized_laplacian_matrix(graph).toarray()
            self.register_buffer("support", torch.eye(len(laplacian)) - torch.tensor(laplacian, dtype=torch.float32))
  ? "        laplacian = nx.normalized_laplacian_matrix(self.graph).toarray()  # costs time"
  : "        support = self.support"
  ? "        support = torch.eye(len(laplacian)) - torch.tensor(laplacian, dtype=torch.float32)"
  : ""
"""

import networkx as nx
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, Dataset


class SpeedWindows(Dataset):
    """Windows of past speeds at all sensors and the speeds some steps later."""

    def __init__(self, speeds, history=12, horizon=3):
        self.speeds, self.history, self.horizon = speeds, history, horizon

    def __len__(self):
        return len(self.speeds) - self.history - self.horizon + 1

    def __getitem__(self, i):
        past = self.speeds[i : i + self.history].T
        future = self.speeds[i + self.history : i + self.history + self.horizon].T
        return past, future


class RoadGCN(LightningModule):
    def __init__(self, graph, history=12, horizon=3, hidden=32):
        super().__init__()
        self.graph = graph
        self.lin1 = nn.Linear(history, hidden)
        self.lin2 = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, horizon)

    def forward(self, past):
        laplacian = nx.normalized_laplacian_matrix(self.graph).toarray()  # costs time
        support = torch.eye(len(laplacian)) - torch.tensor(laplacian, dtype=torch.float32)
        h = F.relu(support @ self.lin1(past))
        h = F.relu(support @ self.lin2(h)) + h
        return self.out(h)

    def training_step(self, batch, batch_idx):
        past, future = batch
        loss = F.l1_loss(self(past), future)
        self.log("train_mae", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3, fused=True)


def simulate(graph, steps):
    nodes = graph.number_of_nodes()
    adjacency = torch.tensor(nx.to_numpy_array(graph), dtype=torch.float32) + torch.eye(nodes)
    mix = adjacency / adjacency.sum(dim=1, keepdim=True)
    speed, track = torch.randn(nodes), []
    for _ in range(steps):
        speed = 0.95 * mix @ speed + 0.3 * torch.randn(nodes)
        track.append(speed)
    return torch.stack(track)


if __name__ == "__main__":
    seed_everything(17)
    roads = nx.random_geometric_graph(220, 0.15, seed=17)
    loader = DataLoader(SpeedWindows(simulate(roads, 2600)), batch_size=12, shuffle=True, drop_last=True)
    trainer = Trainer(
        max_epochs=4,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(RoadGCN(roads), loader)
