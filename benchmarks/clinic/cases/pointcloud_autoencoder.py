"""PointNet-style autoencoder for 3D shape point clouds trained with the Chamfer distance.
The pairwise squared distances are computed by broadcasting to a (batch, n, m, 3) tensor of differences.
---
expect: PD326
fix:
  ? "dist = (a.unsqueeze(2) - b.unsqueeze(1)).pow(2).sum(-1)  # costs time"
  : "dist = torch.baddbmm(a.square().sum(-1)[:, :, None] + b.square().sum(-1)[:, None], a, b.transpose(1, 2), alpha=-2)"
half: score
"""

import lightning as L
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset


def make_shapes(n, points=384, seed=0):
    """Superquadric surfaces with random exponents, axes and rotation."""
    g = torch.Generator().manual_seed(seed)
    eta = (torch.rand(n, points, generator=g) - 0.5) * torch.pi
    omega = (torch.rand(n, points, generator=g) - 0.5) * 2 * torch.pi
    e1, e2 = 0.3 + 1.4 * torch.rand(2, n, 1, generator=g)
    axes = 0.4 + 0.6 * torch.rand(n, 1, 3, generator=g)

    def power(x, e):
        return x.sign() * x.abs().pow(e)

    xyz = (
        torch.stack(
            [
                power(eta.cos(), e1) * power(omega.cos(), e2),
                power(eta.cos(), e1) * power(omega.sin(), e2),
                power(eta.sin(), e1),
            ],
            -1,
        )
        * axes
    )
    rotation, _ = torch.linalg.qr(torch.randn(n, 3, 3, generator=g))
    return xyz @ rotation


def chamfer(a, b):
    dist = (a.unsqueeze(2) - b.unsqueeze(1)).pow(2).sum(-1)  # costs time
    return dist.min(2).values.mean() + dist.min(1).values.mean()


class Encoder(nn.Module):
    def __init__(self, latent):
        super().__init__()
        self.local = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.mixed = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, latent))

    def forward(self, xyz):
        h = self.local(xyz)
        pooled = h.amax(1, keepdim=True).expand_as(h)
        return self.mixed(torch.cat([h, pooled], -1)).amax(1)


class PointAutoencoder(L.LightningModule):
    def __init__(self, latent=128, points=384):
        super().__init__()
        self.encoder = Encoder(latent)
        self.decoder = nn.Sequential(
            nn.Linear(latent, 256), nn.ReLU(), nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, points * 3)
        )
        self.points = points

    def forward(self, xyz):
        return self.decoder(self.encoder(xyz)).view(-1, self.points, 3)

    def training_step(self, batch, batch_idx):
        (xyz,) = batch
        xyz = xyz * (0.9 + 0.2 * torch.rand(xyz.shape[0], 1, 1))
        loss = chamfer(self(xyz), xyz)
        self.log("train_chamfer", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        (xyz,) = batch
        self.log("val_chamfer", chamfer(self(xyz), xyz), batch_size=len(xyz))

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)
        return {"optimizer": opt, "lr_scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=3)}


def batches(data, sampler, size=8):
    return DataLoader(data, sampler=BatchSampler(sampler(data), size, drop_last=False), batch_size=None)


if __name__ == "__main__":
    L.seed_everything(13)
    train = batches(TensorDataset(make_shapes(960)), RandomSampler)
    val = batches(TensorDataset(make_shapes(128, seed=1)), SequentialSampler)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(PointAutoencoder(), train, val)
