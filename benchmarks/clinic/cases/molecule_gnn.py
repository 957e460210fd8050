"""Graph network that predicts a property of molecules joined into one big graph per batch; the pooling goes over the
molecules one by one.
---
expect: PD304
half: score
fix:
  ? "pooled = torch.stack([h[owner == i].mean(0) for i in range(n_mols)])  # costs time"
  : |2-
    size = torch.bincount(owner, minlength=n_mols).unsqueeze(1)
                pooled = h.new_zeros(n_mols, h.shape[1]).index_add(0, owner, h) / size
"""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader


def make_molecule():
    atoms = int(torch.randint(8, 24, ()))
    kinds = torch.randint(0, 10, (atoms,))
    chain = torch.stack([torch.arange(atoms - 1), torch.arange(1, atoms)])
    ring = torch.randint(0, atoms, (2, atoms // 3))
    bonds = torch.cat([chain, ring], 1)
    bonds = torch.cat([bonds, bonds.flip(0)], 1)
    target = (kinds < 3).float().mean() + 0.1 * ring.shape[1]
    return kinds, bonds, target


def join(molecules):
    kinds, bonds, owner, offset = [], [], [], 0
    for i, (k, b, _) in enumerate(molecules):
        kinds.append(k)
        bonds.append(b + offset)
        owner.append(torch.full((len(k),), i))
        offset += len(k)
    target = torch.stack([m[2] for m in molecules])
    return torch.cat(kinds), torch.cat(bonds, 1), torch.cat(owner), target


class Convolution(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.message = nn.Linear(width, width)
        self.update = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, h, bonds):
        source, sink = bonds
        gathered = torch.zeros_like(h).index_add(0, sink, self.message(h).index_select(0, source))
        return h + self.update(torch.cat([h, gathered], 1))


class MoleculeNet(LightningModule):
    def __init__(self, width=96, layers=3):
        super().__init__()
        self.embed = nn.Embedding(10, width)
        self.layers = nn.ModuleList(Convolution(width) for _ in range(layers))
        self.readout = nn.Sequential(nn.Linear(layers * width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, kinds, bonds, owner, n_mols):
        h = self.embed(kinds)
        views = []
        for layer in self.layers:
            h = layer(h, bonds)
            pooled = torch.stack([h[owner == i].mean(0) for i in range(n_mols)])  # costs time
            views.append(pooled)
        return self.readout(torch.cat(views, 1)).squeeze(1)

    def training_step(self, batch, batch_idx):
        kinds, bonds, owner, target = batch
        loss = F.mse_loss(self(kinds, bonds, owner, len(target)), target)
        self.log("train_mse", loss, batch_size=len(target))
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    seed_everything(4)
    molecules = [make_molecule() for _ in range(2000)]
    joined = [join(molecules[i : i + 40]) for i in range(0, len(molecules), 40)]
    loader = DataLoader(joined, batch_size=None, shuffle=True)
    trainer = Trainer(
        max_epochs=8,
        accelerator="cpu",
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=False,
    )
    trainer.fit(MoleculeNet(), loader)
