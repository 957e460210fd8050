"""A physics-informed network solves Burgers' equation; a hook warms the learning rate up and logs the gradient's norm.
The hook calls the optimizer's closure to have the gradients, and then gives the same closure to optimizer.step, which
runs the training step and the backward pass a second time.
---
expect: PD610
half: tune
fix:
  ? |2-
            optimizer_closure()  # costs time
            self.log("grad_norm", nn.utils.get_total_norm([p.grad for p in self.net.parameters()]))
            optimizer.step(closure=optimizer_closure)
  : |2-
            optimizer.step(closure=optimizer_closure)
            self.log("grad_norm", nn.utils.get_total_norm([p.grad for p in self.net.parameters()]))
"""

import math
import tempfile

import lightning as L
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

VISCOSITY = 0.01 / math.pi


class CollocationPoints(IterableDataset):
    """Fresh points of the domain, of the initial line and of the walls for every step."""

    def __init__(self, steps, n_inside, n_edge):
        self.steps, self.n_inside, self.n_edge = steps, n_inside, n_edge

    def __iter__(self):
        for _ in range(self.steps):
            inside = torch.rand(self.n_inside, 2) * torch.tensor([2.0, 1.0]) - torch.tensor([1.0, 0.0])
            start = torch.stack([torch.rand(self.n_edge) * 2 - 1, torch.zeros(self.n_edge)], dim=1)
            wall = torch.stack([torch.randint(0, 2, (self.n_edge,)) * 2.0 - 1, torch.rand(self.n_edge)], dim=1)
            yield inside, start, wall


class BurgersPINN(L.LightningModule):
    def __init__(self, width=64, depth=4, warmup=100, lr=2e-3):
        super().__init__()
        self.warmup, self.lr = warmup, lr
        layers = [nn.Linear(2, width), nn.Tanh()]
        for _ in range(depth - 1):
            layers += [nn.Linear(width, width), nn.Tanh()]
        self.net = nn.Sequential(*layers, nn.Linear(width, 1))

    def residual(self, points):
        points = points.requires_grad_(True)
        u = self.net(points)
        du = torch.autograd.grad(u.sum(), points, create_graph=True)[0]
        u_x, u_t = du[:, :1], du[:, 1:]
        u_xx = torch.autograd.grad(u_x.sum(), points, create_graph=True)[0][:, :1]
        return u_t + u * u_x - VISCOSITY * u_xx

    def training_step(self, batch, batch_idx):
        inside, start, wall = batch
        pde = self.residual(inside).square().mean()
        initial = (self.net(start) + torch.sin(math.pi * start[:, :1])).square().mean()
        border = self.net(wall).square().mean()
        self.log_dict({"pde": pde, "initial": initial, "border": border})
        return pde + 10 * initial + border

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        scale = min(1.0, (self.global_step + 1) / self.warmup)
        for group in optimizer.param_groups:
            group["lr"] = scale * self.lr
        optimizer_closure()  # costs time
        self.log("grad_norm", nn.utils.get_total_norm([p.grad for p in self.net.parameters()]))
        optimizer.step(closure=optimizer_closure)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


if __name__ == "__main__":
    L.seed_everything(5)
    loader = DataLoader(CollocationPoints(110, 600, 64), batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=3,
        logger=CSVLogger(tempfile.mkdtemp()),
        log_every_n_steps=20,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(BurgersPINN(), loader)
