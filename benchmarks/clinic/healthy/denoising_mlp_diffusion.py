"""DDPM-style denoiser (residual MLP) on two-moons-like point sets embedded in 64 dimensions; noise levels and noise are
drawn in batches.
---
half: score
"""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

DIM, STEPS = 64, 200


def make_points(n=40000):
    gen = torch.Generator().manual_seed(0)
    angle = 3.1416 * torch.rand(n, generator=gen)
    upper = (torch.rand(n, generator=gen) < 0.5).float() * 2 - 1
    flat = torch.stack([torch.cos(angle) + 0.5 * upper, upper * torch.sin(angle) - 0.25 * upper], dim=1)
    basis = torch.linalg.qr(torch.randn(DIM, 2, generator=gen)).Q
    return flat @ basis.T + 0.02 * torch.randn(n, DIM, generator=gen)


class PointSet(Dataset):
    def __init__(self):
        self.points = make_points()

    def __len__(self):
        return len(self.points)

    def __getitem__(self, indices):
        return self.points[indices]


class ResidualBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width, width), nn.ReLU(inplace=True), nn.Linear(width, width))

    def forward(self, h):
        return h + self.net(h)


class Denoiser(LightningModule):
    def __init__(self, width=256, depth=3):
        super().__init__()
        beta = torch.linspace(1e-4, 0.05, STEPS)
        alpha_bar = torch.cumprod(1 - beta, 0)
        self.register_buffer("signal", alpha_bar.sqrt()[:, None])
        self.register_buffer("sigma", (1 - alpha_bar).sqrt()[:, None])
        self.time_embed = nn.Embedding(STEPS, width)
        self.inp = nn.Linear(DIM, width)
        self.blocks = nn.Sequential(*[ResidualBlock(width) for _ in range(depth)])
        self.out = nn.Linear(width, DIM)

    def training_step(self, x, batch_idx):
        step = torch.randint(0, STEPS, (len(x),), device=x.device)
        noise = torch.randn_like(x)
        noisy = self.signal[step] * x + self.sigma[step] * noise
        predicted = self.out(self.blocks(self.inp(noisy) + self.time_embed(step)))
        loss = F.mse_loss(predicted, noise)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    seed_everything(17)
    data = PointSet()
    sampler = BatchSampler(RandomSampler(data), batch_size=400, drop_last=True)
    loader = DataLoader(data, sampler=sampler, batch_size=None)
    trainer = Trainer(
        accelerator="cpu",
        precision="bf16-mixed",
        max_epochs=7,
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=False,
    )
    trainer.fit(Denoiser(), loader)
