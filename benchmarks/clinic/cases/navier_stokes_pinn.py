"""Physics-informed network for the 2D incompressible Navier-Stokes equations (Taylor-Green vortex).
Each partial derivative is taken with its own autograd.grad call, so the same backward pass through the network is
repeated for x, y and t.
---
expect: PD328
fix:
  ? "u_x, u_y, u_t = derivative(u, x), derivative(u, y), derivative(u, t)  # costs time"
  : "u_x, u_y, u_t = torch.autograd.grad(u.sum(), (x, y, t), create_graph=True)"
  ? "v_x, v_y, v_t = derivative(v, x), derivative(v, y), derivative(v, t)  # costs time"
  : "v_x, v_y, v_t = torch.autograd.grad(v.sum(), (x, y, t), create_graph=True)"
  ? "p_x, p_y = derivative(p, x), derivative(p, y)"
  : "p_x, p_y = torch.autograd.grad(p.sum(), (x, y), create_graph=True)"
half: score
"""

import math

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

NU = 0.05


def taylor_green(x, y, t):
    decay = torch.exp(-2 * NU * t)
    u = -torch.cos(x) * torch.sin(y) * decay
    v = torch.sin(x) * torch.cos(y) * decay
    p = -0.25 * (torch.cos(2 * x) + torch.cos(2 * y)) * decay**2
    return u, v, p


class CollocationPoints(Dataset):
    """One item is a whole batch of interior points and observed points."""

    def __init__(self, batches, interior=512, observed=256):
        self.batches, self.interior, self.observed = batches, interior, observed

    def __len__(self):
        return self.batches

    def sample(self, n):
        xy = torch.rand(n, 2) * 2 * math.pi
        return xy[:, :1], xy[:, 1:], torch.rand(n, 1)

    def __getitem__(self, index):
        x, y, t = self.sample(self.observed)
        return self.sample(self.interior), (x, y, t * (index % 2)), taylor_green(x, y, t * (index % 2))


def derivative(f, x):
    return torch.autograd.grad(f, x, grad_outputs=torch.ones_like(f), create_graph=True)[0]


class NavierStokesPINN(L.LightningModule):
    def __init__(self, width=64, depth=5):
        super().__init__()
        layers = [nn.Linear(3, width), nn.Tanh()]
        for _ in range(depth - 1):
            layers += [nn.Linear(width, width), nn.Tanh()]
        self.net = nn.Sequential(*layers, nn.Linear(width, 3))

    def forward(self, x, y, t):
        return self.net(torch.cat([x, y, t], dim=1)).split(1, dim=1)

    def residual(self, x, y, t):
        x, y, t = (c.requires_grad_(True) for c in (x, y, t))
        u, v, p = self(x, y, t)
        u_x, u_y, u_t = derivative(u, x), derivative(u, y), derivative(u, t)  # costs time
        v_x, v_y, v_t = derivative(v, x), derivative(v, y), derivative(v, t)  # costs time
        p_x, p_y = derivative(p, x), derivative(p, y)
        lap_u = derivative(u_x, x) + derivative(u_y, y)
        lap_v = derivative(v_x, x) + derivative(v_y, y)
        f_u = u_t + u * u_x + v * u_y + p_x - NU * lap_u
        f_v = v_t + u * v_x + v * v_y + p_y - NU * lap_v
        return f_u, f_v, u_x + v_y

    def training_step(self, batch, batch_idx):
        interior, points, values = batch
        physics = sum(r.square().mean() for r in self.residual(*interior))
        data = sum((a - b).square().mean() for a, b in zip(self(*points), values, strict=False))
        loss = data + 0.1 * physics
        self.log_dict({"data": data, "physics": physics})
        return loss

    def validation_step(self, batch, batch_idx):
        _, points, values = batch
        u, v, _ = self(*points)
        error = ((u - values[0]).square() + (v - values[1]).square()).mean().sqrt()
        self.log("val_velocity_rmse", error, batch_size=u.shape[0])

    def configure_optimizers(self):
        opt = torch.optim.Adam(self.parameters(), lr=2e-3)
        sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.999)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


if __name__ == "__main__":
    L.seed_everything(3)
    train = DataLoader(CollocationPoints(batches=200), batch_size=None)
    val = DataLoader(CollocationPoints(batches=10), batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(NavierStokesPINN(), train, val)
