"""A Chebyshev graph network forecasts traffic at road sensors. Every call of the graph convolution
rebuilds the scaled Laplacian of the fixed sensor graph, eigenvalues included.
---
expect: PD327
fix:
  ? '        self.register_buffer("adjacency", adjacency)'
  : "        self.register_buffer('laplacian', self.compute_laplacian(adjacency))"
  ? "    def scaled_laplacian(self):"
  : "    def compute_laplacian(self, adj):"
  ? "        adj = self.adjacency"
  : ""
  ? "        lap = self.scaled_laplacian()"
  : "        lap = self.laplacian"
  ? "        lambda_max = torch.linalg.eigvalsh(lap).max()  # costs time"
  : "        lambda_max = torch.linalg.eigvalsh(lap).max()"
half: score
"""

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

SENSORS, HISTORY, HORIZON = 325, 12, 6


def road_network(rng):
    xy = rng.random((SENSORS, 2))
    dist = np.linalg.norm(xy[:, None] - xy[None], axis=-1)
    weight = np.exp(-((dist / 0.1) ** 2))
    weight[weight < 0.1] = 0.0
    np.fill_diagonal(weight, 0.0)
    return torch.tensor(weight, dtype=torch.float32)


def simulate_speeds(adjacency, rng, n_steps):
    """Mean-reverting speeds with rush hours and congestion that diffuses along the roads (5 minute steps)."""
    spread = adjacency.numpy() / (adjacency.numpy().sum(1, keepdims=True) + 1e-6)
    phase, speed = rng.normal(0, 0.3, SENSORS), np.zeros(SENSORS)
    out = np.empty((n_steps, SENSORS), dtype=np.float32)
    for t in range(n_steps):
        day = 2 * np.pi * t / 288
        demand = np.sin(day + phase) + 0.5 * np.sin(2 * day + phase)
        speed = 0.75 * speed + 0.2 * spread @ speed - 0.1 * demand + 0.1 * rng.standard_normal(SENSORS)
        out[t] = speed
    return torch.from_numpy((out - out.mean()) / out.std())


class SpeedWindows(Dataset):
    def __init__(self, speeds):
        self.speeds = speeds

    def __len__(self):
        return len(self.speeds) - HISTORY - HORIZON + 1

    def __getitem__(self, i):
        return self.speeds[i : i + HISTORY], self.speeds[i + HISTORY : i + HISTORY + HORIZON]


class ChebConv(nn.Module):
    def __init__(self, in_dim, out_dim, adjacency, order=3):
        super().__init__()
        self.order = order
        self.register_buffer("adjacency", adjacency)
        self.lin = nn.Linear(order * in_dim, out_dim)

    def scaled_laplacian(self):
        adj = self.adjacency
        d_inv_sqrt = adj.sum(1).clamp(min=1e-6).rsqrt()
        eye = torch.eye(len(adj), device=adj.device)
        lap = eye - d_inv_sqrt[:, None] * adj * d_inv_sqrt[None, :]
        lambda_max = torch.linalg.eigvalsh(lap).max()  # costs time
        return 2.0 / lambda_max * lap - eye

    def forward(self, x):
        """x: (batch, sensors, features)"""
        lap = self.scaled_laplacian()  # costs time
        terms = [x, lap @ x]
        for _ in range(2, self.order):
            terms.append(2 * lap @ terms[-1] - terms[-2])
        return self.lin(torch.cat(terms, dim=-1))


class TrafficForecaster(L.LightningModule):
    def __init__(self, adjacency, hidden=24, lr=3e-3):
        super().__init__()
        self.lr = lr
        self.conv1 = ChebConv(HISTORY, 2 * hidden, adjacency)
        self.conv2 = ChebConv(2 * hidden, 2 * hidden, adjacency)
        self.norm = nn.LayerNorm(2 * hidden)
        self.head = nn.Sequential(
            nn.Linear(2 * hidden + HISTORY, 2 * hidden), nn.ReLU(), nn.Linear(2 * hidden, HORIZON)
        )

    def forward(self, history):
        x = history.transpose(1, 2)
        h = F.relu(self.conv1(x))
        h = self.norm(h + F.relu(self.conv2(h)))
        return self.head(torch.cat([h, x], dim=-1)).transpose(1, 2)

    def training_step(self, batch, batch_idx):
        history, future = batch
        loss = F.l1_loss(self(history), future)
        self.log("train_mae", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        history, future = batch
        self.log("val_mae", F.l1_loss(self(history), future), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def main():
    L.seed_everything(5)
    rng = np.random.default_rng(5)
    adjacency = road_network(rng)
    speeds = simulate_speeds(adjacency, rng, 7 * 288)
    train, val = SpeedWindows(speeds[: 6 * 288]), SpeedWindows(speeds[6 * 288 :])
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=4, logger=False, enable_checkpointing=False, enable_model_summary=False
    )
    trainer.fit(
        TrafficForecaster(adjacency), DataLoader(train, batch_size=10, shuffle=True), DataLoader(val, batch_size=64)
    )
    print("val mae", float(trainer.callback_metrics["val_mae"]))


if __name__ == "__main__":
    main()
