"""A denoising diffusion model learns to generate short robot trajectories, with an exponential moving average of its
weights in a callback. The callback asks for the whole state_dict again for each entry that it averages.
---
expect: PD504
fix:
  ? |2-
                for name, average in self.shadow.items():
                    average.lerp_(pl_module.state_dict()[name], 1 - self.decay)  # costs time
  : |2-
                weights = pl_module.state_dict()
                for name, average in self.shadow.items():
                    average.lerp_(weights[name], 1 - self.decay)
half: score
"""

import math

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

HORIZON = 48
STEPS = 200


def make_trajectories(count):
    gen = torch.Generator().manual_seed(5)
    t = torch.linspace(0, 1, HORIZON)
    start, goal, bend = torch.randn(3, count, 2, 1, generator=gen).unbind(0)
    phase = 2 * math.pi * torch.rand(count, 2, 1, generator=gen)
    path = start + (goal - start) * t + 0.3 * bend * torch.sin(math.pi * t) + 0.1 * torch.sin(4 * math.pi * t + phase)
    return path.flatten(1)


class WeightAverage(L.Callback):
    """Keeps an exponential moving average of the weights, for sampling."""

    def __init__(self, decay=0.995):
        self.decay = decay
        self.shadow = {}

    def on_fit_start(self, trainer, pl_module):
        self.shadow = {k: v.detach().clone() for k, v in pl_module.state_dict().items()}

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        with torch.no_grad():
            for name, average in self.shadow.items():
                average.lerp_(pl_module.state_dict()[name], 1 - self.decay)  # costs time


class ResidualBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.time = nn.Linear(32, width)
        self.inner = nn.Linear(width, width)
        self.outer = nn.Linear(width, width)

    def forward(self, x, t):
        h = F.silu(self.inner(self.norm(x)) + self.time(t))
        return x + self.outer(h)


class TrajectoryDiffusion(L.LightningModule):
    def __init__(self, width=256, depth=10):
        super().__init__()
        self.inlet = nn.Linear(2 * HORIZON, width)
        self.blocks = nn.ModuleList(ResidualBlock(width) for _ in range(depth))
        self.outlet = nn.Linear(width, 2 * HORIZON)
        alpha_bar = torch.cos(torch.linspace(0, 0.98, STEPS) * math.pi / 2) ** 2
        self.register_buffer("alpha_bar", alpha_bar, persistent=False)
        self.register_buffer("freqs", torch.exp(torch.linspace(0, -5, 16)), persistent=False)

    def forward(self, x, t):
        angles = t[:, None].float() * self.freqs
        embedding = torch.cat([angles.sin(), angles.cos()], dim=1)
        x = self.inlet(x)
        for block in self.blocks:
            x = block(x, embedding)
        return self.outlet(x)

    def training_step(self, batch, batch_idx):
        (x,) = batch
        t = torch.randint(0, STEPS, (len(x),))
        noise = torch.randn_like(x)
        a = self.alpha_bar[t, None]
        loss = F.mse_loss(self(a.sqrt() * x + (1 - a).sqrt() * noise, t), noise)
        self.log("denoising_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


def main():
    L.seed_everything(23)
    data = TensorDataset(make_trajectories(128 * 90))
    loader = DataLoader(data, sampler=BatchSampler(RandomSampler(data), 128, drop_last=True), batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=3,
        callbacks=[WeightAverage()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(TrajectoryDiffusion(), loader)


if __name__ == "__main__":
    main()
