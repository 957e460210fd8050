"""A graph network forecasts the speed at road sensors; the diffusion matrices of the fixed road graph are computed
again in each forward pass.
---
expect: PD327
fix:
  'self.register_buffer("adjacency", adjacency)': 'self.register_buffer("supports", diffusion_supports(adjacency))'
  "supports = diffusion_supports(self.adjacency)  # costs time": "supports = self.supports"
half: tune
"""

import lightning
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

SENSORS, HISTORY, HORIZON = 560, 12, 3


def road_graph(seed):
    """Closeness of the sensors on a plane, zero beyond a threshold; roads with a direction."""
    generator = torch.Generator().manual_seed(seed)
    place = torch.rand(SENSORS, 2, generator=generator)
    closeness = torch.exp(-((torch.cdist(place, place) / 0.08) ** 2))
    closeness[closeness < 0.1] = 0
    return closeness * (torch.rand(SENSORS, SENSORS, generator=generator) < 0.8)


def diffusion_supports(adjacency, order=3):
    """Powers of the transition matrices in both directions (2 * order, sensors, sensors)."""
    supports = []
    for weights in (adjacency, adjacency.t()):
        transition = weights / weights.sum(1, keepdim=True).clamp(min=1e-6)
        power = transition
        supports.append(power)
        for _ in range(order - 1):
            power = power @ transition  # costs time
            supports.append(power)
    return torch.stack(supports)


class Speeds(Dataset):
    """Windows over a series of speeds that spread along the roads."""

    def __init__(self, adjacency, steps, seed):
        generator = torch.Generator().manual_seed(seed)
        transition = adjacency / adjacency.sum(1, keepdim=True).clamp(min=1e-6)
        noise = torch.randn(steps, SENSORS, generator=generator)
        state, series = torch.zeros(SENSORS), []
        for step in noise:
            state = 0.9 * transition @ state + step
            series.append(state)
        self.series = torch.stack(series)

    def __len__(self):
        return len(self.series) - HISTORY - HORIZON

    def __getitems__(self, indices):
        steps = torch.tensor(indices)[:, None] + torch.arange(HISTORY + HORIZON)
        windows = self.series[steps].transpose(1, 2)
        return windows[..., :HISTORY], windows[..., HISTORY:]


def as_is(batch):
    return batch


class DiffusionConv(nn.Module):
    def __init__(self, width, count):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Linear(width * (count + 1), width)

    def forward(self, x, supports):
        batch, sensors, width = x.shape
        flat = x.transpose(0, 1).reshape(sensors, -1)
        spread = (supports.flatten(0, 1) @ flat).view(-1, sensors, batch, width)
        spread = spread.permute(2, 1, 0, 3).flatten(2)
        return x + F.relu(self.mix(torch.cat([self.norm(x), spread], 2)))


class TrafficNet(lightning.LightningModule):
    def __init__(self, adjacency, width=16, order=3):
        super().__init__()
        self.register_buffer("adjacency", adjacency)
        self.embed = nn.Linear(HISTORY, width)
        self.layers = nn.ModuleList(DiffusionConv(width, 2 * order) for _ in range(2))
        self.head = nn.Linear(width, HORIZON)

    def forward(self, history):
        supports = diffusion_supports(self.adjacency)  # costs time
        x = self.embed(history)
        for layer in self.layers:
            x = layer(x, supports)
        return self.head(x)

    def training_step(self, batch, batch_idx):
        history, future = batch
        return F.l1_loss(self(history), future)

    def validation_step(self, batch, batch_idx):
        history, future = batch
        self.log("val_mae", F.l1_loss(self(history), future), batch_size=len(history))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3, fused=True)


if __name__ == "__main__":
    lightning.seed_everything(19)
    roads = road_graph(0)
    train = DataLoader(Speeds(roads, 400, 1), batch_size=8, shuffle=True, collate_fn=as_is)
    valid = DataLoader(Speeds(roads, 80, 2), batch_size=8, collate_fn=as_is)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(TrafficNet(roads), train, valid)
    print("val_mae", trainer.callback_metrics["val_mae"].item())
