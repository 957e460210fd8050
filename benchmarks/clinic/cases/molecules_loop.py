"""A graph network averages the neighbors of one node after the other.
---
expect:
- PD304
- PD511
half: tune
fix:
  'means = [x[sources[targets == node]].mean(dim=0) for node in range(len(x))]  # costs time':
    'sums = torch.zeros_like(x).index_add(0, targets, x[sources])'
  'return torch.stack(means)': 'return sums / torch.bincount(targets, minlength=len(x)).unsqueeze(1)'
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

N_FEATURES = 16


def make_molecules(n):
    generator = torch.Generator().manual_seed(0)
    molecules = []
    for _ in range(n):
        size = int(torch.randint(8, 17, (1,), generator=generator))
        atoms = torch.randn(size, N_FEATURES, generator=generator)
        ring = torch.arange(size)
        extra = torch.randint(0, size, (2, size // 2), generator=generator)
        sources = torch.cat([ring, ring, (ring + 1) % size, extra[0]])
        targets = torch.cat([ring, (ring + 1) % size, ring, extra[1]])
        molecules.append((atoms, sources, targets, atoms[:, :4].tanh().mean()))
    return molecules


def collate(batch):
    sizes = torch.tensor([len(atoms) for atoms, *_ in batch])
    starts = sizes.cumsum(0) - sizes
    atoms = torch.cat([atoms for atoms, *_ in batch])
    sources = torch.cat([sources + start for (_, sources, _, _), start in zip(batch, starts, strict=True)])
    targets = torch.cat([targets + start for (_, _, targets, _), start in zip(batch, starts, strict=True)])
    molecule = torch.repeat_interleave(torch.arange(len(batch)), sizes)
    return atoms, sources, targets, molecule, torch.stack([energy for *_, energy in batch])


class GraphLayer(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.own = nn.Linear(n_in, n_out)
        self.others = nn.Linear(n_in, n_out)

    def aggregate(self, x, sources, targets):
        means = [x[sources[targets == node]].mean(dim=0) for node in range(len(x))]  # costs time
        return torch.stack(means)

    def forward(self, x, sources, targets):
        return F.relu(self.own(x) + self.others(self.aggregate(x, sources, targets)))


class EnergyModel(L.LightningModule):
    def __init__(self, dim=64):
        super().__init__()
        self.layers = nn.ModuleList([GraphLayer(N_FEATURES, dim), GraphLayer(dim, dim)])
        self.head = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 1))

    def training_step(self, batch, batch_idx):
        x, sources, targets, molecule, energy = batch
        for layer in self.layers:
            x = layer(x, sources, targets)
        pooled = torch.zeros(len(energy), x.shape[1]).index_add(0, molecule, x)
        pooled = pooled / torch.bincount(molecule).unsqueeze(1)
        loss = F.mse_loss(self.head(pooled).squeeze(1), energy)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


L.seed_everything(1)
loader = DataLoader(make_molecules(1_600), batch_size=16, shuffle=True, collate_fn=collate)
trainer = L.Trainer(
    accelerator="cpu",
    max_epochs=3,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(EnergyModel(), loader)
