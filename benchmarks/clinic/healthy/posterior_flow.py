"""Neural posterior estimation for a damped-oscillator simulator with a conditional affine coupling flow.
---
half: score
"""

import math

import lightning as L
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

DIM, OBS = 6, 64


def simulate(n, seed):
    """Two damped oscillations with unknown frequency, damping and amplitude, seen at 64 noisy times."""
    g = torch.Generator().manual_seed(seed)
    theta = torch.randn(n, DIM, generator=g)
    t = torch.linspace(0, 4, OBS)
    freq = 1.5 + 0.4 * theta[:, 0:2, None].tanh() + torch.tensor([0.0, 2.0])[:, None]
    damping = (0.5 * theta[:, 2:4, None] - 1).exp()
    amplitude = (0.3 * theta[:, 4:6, None]).exp()
    x = (amplitude * torch.exp(-damping * t) * torch.cos(2 * math.pi * freq * t / 4)).sum(1)
    return theta, x + 0.05 * torch.randn(n, OBS, generator=g)


class Coupling(nn.Module):
    def __init__(self, context, width, flip):
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(
            nn.Linear(DIM // 2 + context, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, DIM)
        )
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, z, context):
        a, b = z.chunk(2, 1)
        if self.flip:
            a, b = b, a
        shift, scale = self.net(torch.cat([a, context], 1)).chunk(2, 1)
        scale = 2 * torch.tanh(scale / 2)
        b = b * scale.exp() + shift
        return torch.cat([b, a] if self.flip else [a, b], 1), scale.sum(1)


class PosteriorFlow(L.LightningModule):
    def __init__(self, context=32, width=192, layers=6):
        super().__init__()
        self.summary = nn.Sequential(
            nn.Linear(OBS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, context)
        )
        self.layers = nn.ModuleList(Coupling(context, width, flip=bool(i % 2)) for i in range(layers))

    def log_prob(self, theta, x):
        context = self.summary(x)
        z, logdet = theta, 0.0
        for layer in self.layers:
            z, ld = layer(z, context)
            logdet = logdet + ld
        return logdet - 0.5 * z.square().sum(1) - 0.5 * DIM * math.log(2 * math.pi)

    def training_step(self, batch, batch_idx):
        loss = -self.log_prob(*batch).mean()
        self.log("train_nll", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_nll", -self.log_prob(*batch).mean(), batch_size=len(batch[0]))

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=1e-3, weight_decay=1e-4, fused=True)
        return {"optimizer": opt, "lr_scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=4)}


def batches(data, sampler, size):
    return DataLoader(data, sampler=BatchSampler(sampler(data), size, drop_last=False), batch_size=None)


if __name__ == "__main__":
    L.seed_everything(17)
    train = batches(TensorDataset(*simulate(163_840, seed=1)), RandomSampler, 1024)
    val = batches(TensorDataset(*simulate(8_192, seed=2)), SequentialSampler, 2048)
    trainer = L.Trainer(
        accelerator="cpu",
        precision="bf16-mixed",
        max_epochs=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(PosteriorFlow(), train, val)
