"""A physics-informed network learns the travel times of seismic waves from a quarry blast (eikonal equation).
The slopes of the time along the three axes are taken by three separate calls of autograd.grad, each of which runs
backward through the whole network and is differentiated again by the loss, although one call gives all three.
---
expect: PD328
fix:
  ? |2-
            slopes = [slope(time, axis) for axis in (x, y, z)]  # costs time
  : |2-
            slopes = torch.autograd.grad(time.sum(), (x, y, z), create_graph=True)
half: tune
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

SURFACE_SPEED = 2.0
GRADIENT = 0.8
BLAST = torch.tensor([0.3, 0.4, 0.0])


def speed(depth):
    """Speed of the waves, which grows linearly with the depth."""
    return SURFACE_SPEED + GRADIENT * depth


def exact_time(points):
    squared = (points - BLAST).square().sum(1, keepdim=True)
    return torch.acosh(1 + GRADIENT**2 * squared / (2 * speed(points[:, 2:]) * SURFACE_SPEED)) / GRADIENT


def slope(value, axis):
    return torch.autograd.grad(value.sum(), axis, create_graph=True)[0]


class QuarryField(Dataset):
    """Each item: one point of the rock for the equation, and one noisy arrival at a station on the surface."""

    def __init__(self, points):
        self.rock = torch.rand(points, 3)
        stations = torch.rand(60, 3) * torch.tensor([1.0, 1.0, 0.05])
        self.stations = stations[torch.randint(0, 60, (points,))]
        arrivals = exact_time(self.stations)
        self.arrivals = arrivals + 0.005 * torch.randn_like(arrivals)

    def __len__(self):
        return len(self.rock)

    def __getitems__(self, rows):
        rows = torch.as_tensor(rows)
        few = rows[::8]  # arrivals are scarce: one for eight points of the rock
        return self.rock[rows], self.stations[few], self.arrivals[few]


class TravelTimes(L.LightningModule):
    """The time is the straight distance times a slowness from the network, so that it vanishes at the blast."""

    def __init__(self, width=64, depth=4, lr=3e-3):
        super().__init__()
        self.lr = lr
        layers = [nn.Linear(3, width), nn.Tanh()]
        for _ in range(depth - 1):
            layers += [nn.Linear(width, width), nn.Tanh()]
        self.network = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, points):
        distance = torch.linalg.vector_norm(points - BLAST, dim=1, keepdim=True)
        return distance * F.softplus(self.network(points))

    def mismatch(self, points):
        """Violation of the eikonal equation: the slope of the time must be the slowness of the rock."""
        x, y, z = (column.requires_grad_() for column in points.split(1, 1))
        time = self(torch.cat((x, y, z), 1))
        slopes = [slope(time, axis) for axis in (x, y, z)]  # costs time
        steepness = torch.linalg.vector_norm(torch.cat(slopes, 1), dim=1, keepdim=True)
        return steepness * speed(z.detach()) - 1

    def training_step(self, batch, batch_idx):
        rock, stations, arrivals = batch
        data = F.mse_loss(self(stations), arrivals)
        physics = self.mismatch(rock).square().mean()
        return physics + 10 * data

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.lr, fused=True)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
        return [optimizer], [scheduler]


def identity(batch):
    return batch


def main():
    L.seed_everything(11)
    loader = DataLoader(QuarryField(48_000), batch_size=800, shuffle=True, collate_fn=identity)
    model = TravelTimes()
    trainer = L.Trainer(
        max_epochs=5,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader)
    points = torch.rand(4000, 3)
    with torch.inference_mode():
        error = (model(points) - exact_time(points)).abs().mean()
    print(f"mean error of the travel time: {error:.4f} s")


if __name__ == "__main__":
    main()
