"""A message-passing network learns the formation energy of crystals from their neighbor graphs. The graphs
and their distance features are made once before the training; batches join them to one graph.
---
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

ELEMENTS = 12
CUTOFF = 1.5
BASIS = 16


class CrystalGraphs(Dataset):
    def __init__(self, count, seed):
        gen = torch.Generator().manual_seed(seed)
        sizes = torch.randint(16, 33, (count,), generator=gen).tolist()
        self.graphs = [self.build(size, gen) for size in sizes]

    @staticmethod
    def build(size, gen):
        """Atoms in a box, joined where they are near; the energy is a sum of pair terms."""
        places = torch.rand(size, 3, generator=gen) * size ** (1 / 3)
        atoms = torch.randint(0, ELEMENTS, (size,), generator=gen)
        distances = torch.cdist(places, places)
        source, target = ((distances < CUTOFF) & (distances > 0)).nonzero(as_tuple=True)
        d = distances[source, target]
        charge = (atoms - (ELEMENTS - 1) / 2) / ELEMENTS
        energy = (charge[source] * charge[target] * torch.exp(-d)).sum() / size
        centers = torch.linspace(0.0, CUTOFF, BASIS)
        features = torch.exp(-(((d[:, None] - centers) * BASIS / CUTOFF) ** 2) / 2)
        return atoms, torch.stack([source, target]), features, energy

    def __len__(self):
        return len(self.graphs)

    def __getitem__(self, index):
        return self.graphs[index]


def join_graphs(graphs):
    atoms, edges, features, energies = zip(*graphs, strict=True)
    sizes = torch.tensor([len(a) for a in atoms])
    offsets = (sizes.cumsum(0) - sizes).tolist()
    joined = torch.cat([e + offset for e, offset in zip(edges, offsets, strict=True)], dim=1)
    owner = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    return torch.cat(atoms), joined, torch.cat(features), owner, sizes, torch.stack(energies)


class Interaction(nn.Module):
    """A continuous-filter convolution: neighbors times a filter of the distance, summed per atom."""

    def __init__(self, dim):
        super().__init__()
        self.filter = nn.Sequential(nn.Linear(BASIS, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.inlet = nn.Linear(dim, dim, bias=False)
        self.outlet = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim))

    def forward(self, x, edges, features):
        source, target = edges
        messages = self.inlet(x).index_select(0, source) * self.filter(features)
        gathered = torch.zeros_like(x).index_add_(0, target, messages)
        return x + self.outlet(gathered)


class CrystalNet(L.LightningModule):
    def __init__(self, dim=64, depth=3, lr=1e-3):
        super().__init__()
        self.atoms = nn.Embedding(ELEMENTS, dim)
        self.interactions = nn.ModuleList(Interaction(dim) for _ in range(depth))
        self.readout = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, 1))
        self.lr = lr

    def forward(self, atoms, edges, features, owner, sizes):
        x = self.atoms(atoms)
        for interaction in self.interactions:
            x = interaction(x, edges, features)
        per_atom = self.readout(x).squeeze(-1)
        return per_atom.new_zeros(len(sizes)).index_add_(0, owner, per_atom) / sizes

    def training_step(self, batch, batch_idx):
        *graph, energy = batch
        loss = F.mse_loss(self(*graph), energy)
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(energy))
        return loss

    def validation_step(self, batch, batch_idx):
        *graph, energy = batch
        self.log("val_mae", F.l1_loss(self(*graph), energy), batch_size=len(energy))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


if __name__ == "__main__":
    L.seed_everything(6)
    train = DataLoader(CrystalGraphs(1920, 1), batch_size=24, shuffle=True, collate_fn=join_graphs)
    val = DataLoader(CrystalGraphs(144, 2), batch_size=48, collate_fn=join_graphs)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(CrystalNet(), train, val)
