"""Trains a physics-informed network for the spread of a pollutant over a town; the first derivatives by x, y and t are
taken with three backward passes through the network instead of one.
---
expect: [PD341, PD328]
fix:
  ? |-
    c_x = gradient(c, x)[0]  # costs time
            c_y = gradient(c, y)[0]  # costs time
            c_t = gradient(c, t)[0]  # costs time
  : "c_x, c_y, c_t = gradient(c, (x, y, t))"
half: score
"""

import lightning
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

WIND = (0.6, -0.25)
DIFFUSION = 0.02


def gradient(output, inputs):
    return torch.autograd.grad(output, inputs, torch.ones_like(output), create_graph=True)


def plume(place):
    """Concentration of a puff that the wind carries away: an exact solution, used as sensor readings."""
    x, y, t = place.unbind(1)
    spread = 0.05 + 4 * DIFFUSION * t
    distance = (x - 0.2 - WIND[0] * t) ** 2 + (y - 0.7 - WIND[1] * t) ** 2
    return (0.05 / spread * torch.exp(-distance / spread))[:, None]


class PlumeNet(lightning.LightningModule):
    def __init__(self, width=80):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(3, width),
            nn.Tanh(),
            nn.Linear(width, width),
            nn.Tanh(),
            nn.Linear(width, width),
            nn.Tanh(),
            nn.Linear(width, width),
            nn.Tanh(),
            nn.Linear(width, 1),
        )

    def forward(self, place):
        return self.net(place)

    def residual(self, place):
        """Advection-diffusion equation: c_t + wind * grad c - diffusion * laplace c."""
        x, y, t = (column.requires_grad_() for column in place.split(1, dim=1))
        c = self(torch.cat([x, y, t], 1))
        c_x = gradient(c, x)[0]  # costs time
        c_y = gradient(c, y)[0]  # costs time
        c_t = gradient(c, t)[0]  # costs time
        c_xx = gradient(c_x, x)[0]
        c_yy = gradient(c_y, y)[0]
        return c_t + WIND[0] * c_x + WIND[1] * c_y - DIFFUSION * (c_xx + c_yy)

    def training_step(self, batch, batch_idx):
        place, sensor, reading = batch
        data = F.mse_loss(self(sensor), reading)
        return 10 * data + self.residual(place).square().mean()

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=2e-3, fused=True)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)]


class Blocks(TensorDataset):
    """Hands out whole batches by slicing: points of the domain in blocks of 1024 with 128 sensor readings."""

    def __init__(self, blocks, seed):
        gen = torch.Generator().manual_seed(seed)
        place = torch.rand(blocks, 1024, 3, generator=gen)
        sensor = torch.rand(blocks, 128, 3, generator=gen)
        reading = plume(sensor.flatten(0, 1)).view(blocks, 128, 1)
        super().__init__(place, sensor, reading)


if __name__ == "__main__":
    lightning.seed_everything(8, verbose=False)
    loader = DataLoader(Blocks(84, seed=4), batch_size=None, shuffle=True)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(PlumeNet(), loader)
