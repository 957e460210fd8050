"""A physics-informed network learns the decaying Taylor-Green vortex from the Navier-Stokes equations. Each partial
derivative in the residual is taken by a call of its own, which differentiates again what others have computed already.
---
expect: PD328
fix:
  ? |2-
            u_x, u_y, u_t = partial(u, x), partial(u, y), partial(u, t)
            v_x, v_y, v_t = partial(v, x), partial(v, y), partial(v, t)
            p_x, p_y = partial(p, x), partial(p, y)
            lap_u = partial(partial(u, x), x) + partial(partial(u, y), y)
            lap_v = partial(partial(v, x), x) + partial(partial(v, y), y)
  : |2-
            u_x, u_y, u_t = torch.autograd.grad(u.sum(), (x, y, t), create_graph=True)
            v_x, v_y, v_t = torch.autograd.grad(v.sum(), (x, y, t), create_graph=True)
            p_x, p_y = torch.autograd.grad(p.sum(), (x, y), create_graph=True)
            lap_u = partial(u_x, x) + partial(u_y, y)
            lap_v = partial(v_x, x) + partial(v_y, y)
half: tune
"""

import math

import lightning as L
import torch
import torch.nn as nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

VISCOSITY = 0.05


def exact(x, y, t):
    decay = torch.exp(-2 * VISCOSITY * t)
    return torch.cat([torch.cos(x) * torch.sin(y) * decay, -torch.sin(x) * torch.cos(y) * decay], dim=1)


def collocation_points(count, seed):
    gen = torch.Generator().manual_seed(seed)
    return torch.rand(count, 3, generator=gen) * torch.tensor([2 * math.pi, 2 * math.pi, 2.0])


def partial(output, coordinate):
    return torch.autograd.grad(output.sum(), coordinate, create_graph=True)[0]  # costs time


class VortexNet(L.LightningModule):
    def __init__(self, width=96, depth=4):
        super().__init__()
        layers = [nn.Linear(3, width), nn.Tanh()]
        for _ in range(depth - 1):
            layers += [nn.Linear(width, width), nn.Tanh()]
        self.net = nn.Sequential(*layers, nn.Linear(width, 3))

    def forward(self, x, y, t):
        return self.net(torch.cat([x - math.pi, y - math.pi, t - 1.0], dim=1))

    def residual(self, points):
        x, y, t = (c.clone().requires_grad_() for c in points.split(1, dim=1))
        u, v, p = self(x, y, t).split(1, dim=1)
        u_x, u_y, u_t = partial(u, x), partial(u, y), partial(u, t)
        v_x, v_y, v_t = partial(v, x), partial(v, y), partial(v, t)
        p_x, p_y = partial(p, x), partial(p, y)
        lap_u = partial(partial(u, x), x) + partial(partial(u, y), y)
        lap_v = partial(partial(v, x), x) + partial(partial(v, y), y)
        momentum_x = u_t + u * u_x + v * u_y + p_x - VISCOSITY * lap_u
        momentum_y = v_t + u * v_x + v * v_y + p_y - VISCOSITY * lap_v
        return torch.cat([momentum_x, momentum_y, u_x + v_y], dim=1)

    def training_step(self, batch, batch_idx):
        points, initial = batch
        physics = self.residual(points).square().mean()
        x, y, t = initial.split(1, dim=1)
        t = torch.zeros_like(t)
        start = (self(x, y, t)[:, :2] - exact(x, y, t)).square().mean()
        self.log_dict({"physics": physics, "start": start})
        return physics + 10 * start

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


def main():
    L.seed_everything(41)
    count, batch_size = 384 * 72, 384
    data = TensorDataset(collocation_points(count, seed=1), collocation_points(count, seed=2))
    loader = DataLoader(data, sampler=BatchSampler(RandomSampler(data), batch_size, drop_last=True), batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=4, logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(VortexNet(), loader)


if __name__ == "__main__":
    main()
