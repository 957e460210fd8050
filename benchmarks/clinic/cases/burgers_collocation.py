"""A physics-informed network for the viscous Burgers equation; the time goes into drawing the collocation points
of each step.
---
expect: PD511
fix:
  np.random.choice(len(self.grid), COLLOCATION, replace=False): np.random.randint(0, len(self.grid), COLLOCATION)
half: score
"""

import math

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

VISCOSITY = 0.01 / math.pi
COLLOCATION, NX, NT = 768, 1024, 500


def initial_and_boundary(count):
    gen = torch.Generator().manual_seed(8)
    x0 = 2 * torch.rand(count // 2, 1, generator=gen) - 1
    initial = torch.cat([x0, torch.zeros_like(x0), -torch.sin(math.pi * x0)], 1)
    side = torch.randint(0, 2, (count // 2, 1), generator=gen).float() * 2 - 1
    when = torch.rand(count // 2, 1, generator=gen)
    boundary = torch.cat([side, when, torch.zeros_like(when)], 1)
    rows = torch.cat([initial, boundary])
    return TensorDataset(rows[:, :2], rows[:, 2:])


def derivative(values, inputs):
    return torch.autograd.grad(values.sum(), inputs, create_graph=True)[0]


class BurgersNet(L.LightningModule):
    def __init__(self, width=64, depth=4):
        super().__init__()
        layers = [nn.Linear(2, width), nn.Tanh()]
        for _ in range(depth - 1):
            layers += [nn.Linear(width, width), nn.Tanh()]
        self.net = nn.Sequential(*layers, nn.Linear(width, 1))
        x = np.linspace(-1, 1, NX, dtype=np.float32)
        t = np.linspace(0, 1, NT, dtype=np.float32)
        self.grid = np.stack(np.meshgrid(x, t), axis=-1).reshape(-1, 2)

    def forward(self, points):
        return self.net(points)

    def residual(self, points):
        x, t = points[:, :1].requires_grad_(), points[:, 1:].requires_grad_()
        u = self.net(torch.cat([x, t], dim=1))
        u_x = derivative(u, x)
        u_t = derivative(u, t)
        u_xx = derivative(u_x, x)
        return u_t + u * u_x - VISCOSITY * u_xx

    def training_step(self, batch, batch_idx):
        points, target = batch
        fit = (self(points) - target).square().mean()

        chosen = np.random.choice(len(self.grid), COLLOCATION, replace=False)  # costs time
        inner = torch.from_numpy(self.grid[chosen]).to(self.device)
        physics = self.residual(inner).square().mean()

        loss = fit + physics
        self.log_dict({"fit": fit, "physics": physics})
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=2e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
        return [optimizer], [schedule]


def main():
    L.seed_everything(8)
    torch.set_num_threads(1)
    data = initial_and_boundary(6400)
    batches = BatchSampler(RandomSampler(data), 128, drop_last=True)
    loader = DataLoader(data, sampler=batches, batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        max_epochs=8,
        gradient_clip_val=1.0,
    )
    trainer.fit(BurgersNet(), loader)
    print({k: round(float(v), 5) for k, v in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
