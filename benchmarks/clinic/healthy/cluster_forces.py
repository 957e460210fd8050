"""Trains an interatomic potential on energies and forces of small argon-like clusters (Lennard-Jones, in memory). The
forces are derivatives of the predicted energy, so the graph of the first derivative is kept for the loss.
---
half: score
"""

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

ATOMS = 10
FORCE_WEIGHT = 5.0


def lennard_jones(positions):
    first, second = torch.triu_indices(ATOMS, ATOMS, offset=1)
    distance = (positions[:, first] - positions[:, second]).norm(dim=-1)
    inverse6 = distance**-6
    return (4 * (inverse6**2 - inverse6)).sum(dim=1)


class ClusterDataset(Dataset):
    """Distorted lattice clusters with the energy per atom and the forces of the reference potential."""

    def __init__(self, n_clusters, seed):
        gen = torch.Generator().manual_seed(seed)
        grid = torch.cartesian_prod(*[torch.arange(3, dtype=torch.float)] * 3) * 1.15
        sites = torch.rand(n_clusters, len(grid), generator=gen).argsort(dim=1)[:, :ATOMS]
        positions = grid[sites] + 0.06 * torch.randn(n_clusters, ATOMS, 3, generator=gen)
        positions.requires_grad_(True)
        energy = lennard_jones(positions)
        self.forces = -torch.autograd.grad(energy.sum(), positions)[0] / ATOMS
        self.energies = energy.detach() / ATOMS
        self.positions = positions.detach()

    def __len__(self):
        return len(self.positions)

    def __getitems__(self, indices):
        indices = torch.as_tensor(indices)
        return self.positions[indices], self.energies[indices], self.forces[indices]


class PairPotential(nn.Module):
    """Learned pair terms on a radial basis, mixed into an environment of each atom."""

    def __init__(self, n_basis=24, width=48):
        super().__init__()
        first, second = torch.triu_indices(ATOMS, ATOMS, offset=1)
        self.register_buffer("first", first)
        self.register_buffer("second", second)
        self.register_buffer("centers", torch.linspace(0.7, 4.5, n_basis))
        self.radial = nn.Sequential(nn.Linear(n_basis, width), nn.SiLU(), nn.Linear(width, width))
        self.readout = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, positions):
        offsets = positions[:, self.first] - positions[:, self.second]
        distance = offsets.square().sum(dim=-1, keepdim=True).sqrt()
        messages = self.radial(torch.exp(-12.0 * (distance - self.centers).square()))
        environment = messages.new_zeros(len(positions), ATOMS, messages.shape[-1])
        environment = environment.index_add(1, self.first, messages).index_add(1, self.second, messages)
        return self.readout(environment).squeeze(-1).mean(dim=1)


class ForceField(L.LightningModule):
    def __init__(self, lr=2e-3):
        super().__init__()
        self.lr = lr
        self.potential = PairPotential()

    def training_step(self, batch, batch_idx):
        positions, energies, forces = batch
        positions = positions.requires_grad_(True)
        predicted = self.potential(positions)
        (gradient,) = torch.autograd.grad(predicted.sum(), positions, create_graph=True)
        energy_loss = F.smooth_l1_loss(predicted, energies)
        force_loss = F.smooth_l1_loss(-gradient, forces)
        loss = energy_loss + FORCE_WEIGHT * force_loss
        self.log_dict(
            {"energy_loss": energy_loss.detach(), "force_loss": force_loss.detach()},
            on_step=False,
            on_epoch=True,
            batch_size=len(energies),
        )
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.lr, fused=True)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.8)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


def main():
    L.seed_everything(61)
    loader = DataLoader(ClusterDataset(25600, seed=1), batch_size=64, shuffle=True, drop_last=True, collate_fn=tuple)
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        gradient_clip_val=1.0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(ForceField(), loader)
    print({name: round(float(value), 4) for name, value in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
