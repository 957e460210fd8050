"""A pair network learns the energies and the forces of small argon clusters; the forces are the derivatives of the
predicted energy, so that every step differentiates twice.
---
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ATOMS = 14
BASIS = 24


def make_clusters(n):
    """Jittered lattice clusters with the Lennard-Jones energy and forces, in reduced units."""
    axis = torch.arange(3) * 1.12
    lattice = torch.cartesian_prod(axis, axis, axis)
    sites = torch.rand(n, len(lattice)).argsort(dim=1)[:, :ATOMS]
    position = (lattice[sites] + 0.06 * torch.randn(n, ATOMS, 3)).requires_grad_()
    i, j = torch.triu_indices(ATOMS, ATOMS, offset=1)
    squared = (position[:, i] - position[:, j]).square().sum(-1)
    sixth = squared.pow(-3)
    energy = 4 * (sixth * sixth - sixth).sum(1)
    (gradient,) = torch.autograd.grad(energy.sum(), position)
    return position.detach(), energy.detach(), -gradient


class PairPotential(L.LightningModule):
    def __init__(self, hidden=48, cutoff=4.0):
        super().__init__()
        i, j = torch.triu_indices(ATOMS, ATOMS, offset=1)
        self.register_buffer("i", i)
        self.register_buffer("j", j)
        self.register_buffer("centres", torch.linspace(0.8, cutoff, BASIS))
        self.width = (cutoff - 0.8) / BASIS
        self.cutoff = cutoff
        self.pair = nn.Sequential(
            nn.Linear(BASIS, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 1)
        )

    def energy(self, position):
        separation = position.index_select(1, self.i) - position.index_select(1, self.j)
        distance = separation.square().sum(-1).sqrt()
        basis = torch.exp(-(((distance.unsqueeze(-1) - self.centres) / self.width) ** 2))
        envelope = 0.5 * (1 + torch.cos(torch.pi * (distance / self.cutoff).clamp(max=1)))
        return (self.pair(basis).squeeze(-1) * envelope).sum(1)

    def training_step(self, batch, batch_idx):
        position, energy, force = batch
        position.requires_grad_()
        predicted = self.energy(position)
        (gradient,) = torch.autograd.grad(predicted.sum(), position, create_graph=True)
        energy_loss = F.mse_loss(predicted, energy) / ATOMS
        force_loss = F.smooth_l1_loss(-gradient, force)
        self.log("energy_loss", energy_loss, on_step=False, on_epoch=True)
        self.log("force_loss", force_loss, on_step=False, on_epoch=True)
        return 0.1 * energy_loss + force_loss

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=2e-3, fused=True)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


def main():
    L.seed_everything(23)
    loader = DataLoader(TensorDataset(*make_clusters(1600)), batch_size=16, shuffle=True)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=8,
        gradient_clip_val=10.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(PairPotential(), loader)


if __name__ == "__main__":
    main()
