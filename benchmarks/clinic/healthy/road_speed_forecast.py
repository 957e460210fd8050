"""A graph convolution network forecasts the speeds at the sensors of a synthetic road network from the last hour; the
normalized adjacency is prepared once as a sparse matrix.
---
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

SENSORS = 200
HISTORY = 12
HORIZON = 3


def make_roads(seed, neighbors=4):
    """The symmetric normalized adjacency (with self loops) of sensors on a plane, as a sparse CSR matrix."""
    gen = torch.Generator().manual_seed(seed)
    places = torch.rand(SENSORS, 2, generator=gen)
    nearest = torch.cdist(places, places).topk(neighbors + 1, largest=False).indices
    dense = torch.zeros(SENSORS, SENSORS).scatter_(1, nearest, 1.0)
    dense = torch.maximum(dense, dense.T)
    scale = dense.sum(1).rsqrt()
    return scale[:, None] * dense * scale


def make_speeds(adjacency, steps, seed):
    gen = torch.Generator().manual_seed(seed)
    spread = (adjacency @ adjacency).to_sparse_csr()
    daily = torch.sin(torch.arange(steps)[:, None] / 288 * 6.2832 + torch.rand(SENSORS, generator=gen))
    speeds, state = [], torch.randn(SENSORS, generator=gen)
    shocks = 0.4 * torch.randn(steps, SENSORS, generator=gen)
    for step in range(steps):
        state = 0.9 * (spread @ state[:, None]).squeeze(1) + shocks[step]
        speeds.append(state)
    return torch.stack(speeds) + daily


class Windows(Dataset):
    def __init__(self, speeds):
        self.windows = speeds.unfold(0, HISTORY + HORIZON, 1)

    def __len__(self):
        return len(self.windows)

    def __getitems__(self, indices):
        windows = self.windows[indices]
        return windows[..., :HISTORY], windows[..., HISTORY:]


def keep(batch):
    return batch


class GraphConvolution(nn.Module):
    def __init__(self, inputs, outputs, adjacency):
        super().__init__()
        self.own = nn.Linear(inputs, outputs)
        self.near = nn.Linear(inputs, outputs, bias=False)
        self.register_buffer("adjacency", adjacency, persistent=False)

    def forward(self, x):
        sensors, batch, features = x.shape
        mixed = (self.adjacency @ x.reshape(sensors, -1)).view(sensors, batch, features)
        return self.own(x) + self.near(mixed)


class SpeedForecaster(L.LightningModule):
    def __init__(self, adjacency, width=96):
        super().__init__()
        self.first = GraphConvolution(HISTORY, width, adjacency)
        self.second = GraphConvolution(width, width, adjacency)
        self.out = nn.Linear(width, HORIZON)

    def forward(self, history):
        x = history.transpose(0, 1)
        x = F.relu(self.first(x))
        x = F.relu(self.second(x))
        return self.out(x).transpose(0, 1)

    def training_step(self, batch, batch_idx):
        history, future = batch
        loss = F.smooth_l1_loss(self(history), future)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        history, future = batch
        self.log("val_mae", F.l1_loss(self(history), future), batch_size=len(history))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3)


if __name__ == "__main__":
    L.seed_everything(6)
    roads = make_roads(1)
    speeds = make_speeds(roads, 2600, 2)
    train_loader = DataLoader(Windows(speeds[:2000]), batch_size=16, shuffle=True, collate_fn=keep)
    val_loader = DataLoader(Windows(speeds[2300:]), batch_size=64, collate_fn=keep)
    trainer = L.Trainer(accelerator="cpu", max_epochs=4, log_every_n_steps=20)
    trainer.fit(SpeedForecaster(roads.to_sparse_csr()), train_loader, val_loader)
    print("validation error", float(trainer.callback_metrics["val_mae"]))
