"""Flow matching learns the energy deposits of calorimeter showers and keeps a checkpoint of the latest state;
its samples are compared with a reference set. The module's hyperparameters hold the whole reference set, and
so does each file.
---
expect: PD602
fix:
  ? 'self.save_hyperparameters()  # costs time'
  : 'self.save_hyperparameters(ignore=["reference"])'
half: score
"""

import tempfile

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CELLS = 64


def simulate_showers(count: int, seed: int):
    """Log energies in the layers of a calorimeter: a gamma-like profile with random start and width."""
    gen = torch.Generator().manual_seed(seed)
    depth = torch.linspace(0.05, 1.0, CELLS)
    start = 0.3 + 0.05 * torch.randn(count, 1, generator=gen)
    width = 0.1 + 0.02 * torch.rand(count, 1, generator=gen)
    profile = torch.exp(-(((depth - start) / width) ** 2) / 2)
    energy = torch.rand(count, 1, generator=gen) + 0.5
    return torch.log1p(energy * profile) + 0.05 * torch.randn(count, CELLS, generator=gen)


class VelocityNet(nn.Module):
    def __init__(self, hidden, depth):
        super().__init__()
        self.inlet = nn.Linear(CELLS + 16, hidden)
        self.layers = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(depth))
        self.outlet = nn.Linear(hidden, CELLS)
        self.register_buffer("freqs", 2.0 ** torch.arange(8) * torch.pi / 4)

    def forward(self, x, t):
        phase = t * self.freqs
        h = self.inlet(torch.cat([x, phase.sin(), phase.cos()], dim=1))
        for layer in self.layers:
            h = h + layer(F.silu(h))
        return self.outlet(F.silu(h))


class ShowerFlow(L.LightningModule):
    def __init__(self, reference, hidden=256, depth=4, lr=1e-3, euler_steps=8, probe=256):
        super().__init__()
        self.save_hyperparameters()  # costs time
        self.net = VelocityNet(hidden, depth)
        self.reference = reference

    def training_step(self, batch, batch_idx):
        (x1,) = batch
        x0 = torch.randn_like(x1)
        t = torch.rand(len(x1), 1, device=self.device)
        loss = F.mse_loss(self.net(torch.lerp(x0, x1, t), t), x1 - x0)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def sample(self, count):
        x = torch.randn(count, CELLS, device=self.device)
        dt = 1.0 / self.hparams.euler_steps
        for step in range(self.hparams.euler_steps):
            x = x + dt * self.net(x, torch.full((count, 1), step * dt, device=self.device))
        return x

    def validation_step(self, batch, batch_idx):
        (held_out,) = batch
        pick = torch.randint(0, len(self.reference), (self.hparams.probe,))
        reference = self.reference[pick].to(self.device)
        fake = self.sample(self.hparams.probe)
        distance = 2 * torch.cdist(fake, reference).mean() - torch.cdist(fake, fake).mean()
        distance = distance - torch.cdist(reference, held_out).mean()
        self.log("val_energy_distance", distance)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)


if __name__ == "__main__":
    L.seed_everything(13)
    reference = simulate_showers(300_000, seed=1)
    train = DataLoader(TensorDataset(simulate_showers(15_360, seed=2)), batch_size=128, shuffle=True)
    val = DataLoader(TensorDataset(simulate_showers(512, seed=3)), batch_size=256)
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            accelerator="cpu",
            max_epochs=4,
            val_check_interval=30,
            callbacks=[ModelCheckpoint(folder)],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(ShowerFlow(reference), train, val)
