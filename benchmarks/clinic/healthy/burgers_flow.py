"""Trains a physics-informed network on the viscous Burgers equation with fresh collocation points in each step.
---
half: score
"""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

VISCOSITY = 0.01 / torch.pi


class Collocation(IterableDataset):
    """Random points inside the domain and on its initial and spatial boundaries."""

    def __init__(self, steps, inside=1500, border=200):
        self.steps, self.inside, self.border = steps, inside, border

    def __len__(self):
        return self.steps

    def __iter__(self):
        for _ in range(self.steps):
            x = 2 * torch.rand(self.inside, 1) - 1
            t = torch.rand(self.inside, 1)
            x0 = 2 * torch.rand(self.border, 1) - 1
            start = torch.cat([x0, torch.zeros_like(x0)], dim=1)
            side = torch.cat([torch.sign(torch.rand_like(x0) - 0.5), torch.rand_like(x0)], dim=1)
            target = torch.cat([-torch.sin(torch.pi * x0), torch.zeros_like(x0)])
            yield x, t, torch.cat([start, side]), target


class BurgersPINN(L.LightningModule):
    def __init__(self, width=96, depth=4):
        super().__init__()
        layers = [nn.Linear(2, width), nn.Tanh()]
        for _ in range(depth - 1):
            layers += [nn.Linear(width, width), nn.Tanh()]
        self.net = nn.Sequential(*layers, nn.Linear(width, 1))
        for layer in self.net:
            if isinstance(layer, nn.Linear):
                nn.init.xavier_normal_(layer.weight)
                nn.init.zeros_(layer.bias)

    def residual(self, x, t):
        x.requires_grad_(True)
        t.requires_grad_(True)
        u = self.net(torch.cat([x, t], dim=1))
        u_x, u_t = torch.autograd.grad(u.sum(), (x, t), create_graph=True)
        (u_xx,) = torch.autograd.grad(u_x.sum(), x, create_graph=True)
        return u_t + u * u_x - VISCOSITY * u_xx

    def training_step(self, batch, batch_idx):
        x, t, border, target = batch
        physics = self.residual(x, t).square().mean()
        data = (self.net(border) - target).square().mean()
        self.log_dict({"physics_loss": physics, "data_loss": data})
        return physics + 5 * data

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=2e-3, fused=True)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.8)]


if __name__ == "__main__":
    L.seed_everything(0)
    loader = DataLoader(Collocation(steps=50), batch_size=None)
    trainer = L.Trainer(max_epochs=6, accelerator="cpu", logger=False, enable_checkpointing=False)
    trainer.fit(BurgersPINN(), loader)
