"""A physics-informed network for Burgers' equation: derivatives by autograd at new random points in each step.
---
half: score
"""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

N_POINTS = 768


class RandomPoints(IterableDataset):
    def __iter__(self):
        for _ in range(400):
            inside = torch.rand(N_POINTS, 2) * torch.tensor([1.0, 2.0]) - torch.tensor([0.0, 1.0])
            start = torch.stack([torch.zeros(128), torch.rand(128) * 2 - 1], dim=-1)
            yield inside, start


def slope(values, points):
    return torch.autograd.grad(values.sum(), points, create_graph=True)[0]


class Burgers(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
        )

    def training_step(self, batch, batch_idx):
        inside, start = batch
        inside = inside.requires_grad_()
        speed = self.net(inside)
        first = slope(speed, inside)
        second = slope(first[:, 1], inside)
        residual = first[:, :1] + speed * first[:, 1:] - 0.01 / torch.pi * second[:, 1:]
        initial = self.net(start) + torch.sin(torch.pi * start[:, 1:])
        loss = residual.square().mean() + initial.square().mean()
        self.log("train/loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    L.seed_everything(1)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Burgers(), DataLoader(RandomPoints(), batch_size=None))
