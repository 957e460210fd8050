"""A graph convolution network that predicts the solubility of molecules, whose collate function joins the molecules of
a batch in one dense adjacency matrix.
---
expect: PD330
fix:
  "torch.zeros(atoms, atoms).index_put_((rows, cols), values)": |-
    torch.sparse_coo_tensor(
            torch.stack([rows, cols]), values, (atoms, atoms), check_invariants=False
        ).coalesce()
half: tune
"""

import lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

ELEMENTS = 9


def molecules(count, seed):
    """Trees of 14 to 36 atoms with a few ring bonds: elements, normalized bonds (with self loops), solubility."""
    g = torch.Generator().manual_seed(seed)
    polar = torch.tensor([-0.4, 0.9, 0.7, 0.1, -0.3, -0.6, 0.5, -0.2, 0.3])
    out = []
    for atoms in torch.randint(14, 37, (count,), generator=g).tolist():
        elements = torch.randint(0, ELEMENTS, (atoms,), generator=g)
        child = torch.arange(1, atoms)
        parent = (child - 1 - (torch.rand(atoms - 1, generator=g) * 2).long()).clamp(min=0)
        ring = torch.randperm(atoms, generator=g)[:4].view(2, 2)
        bonds = torch.cat([torch.stack([child, parent]), ring], 1)
        bonds = torch.cat([bonds, bonds.flip(0), torch.arange(atoms).expand(2, -1)], 1).unique(dim=1)
        degree = torch.bincount(bonds[0], minlength=atoms).float()
        values = (degree[bonds[0]] * degree[bonds[1]]).rsqrt()
        target = polar[elements].mean() * 4 + 0.3 * (degree == 2).float().mean()
        out.append((elements, bonds, values, target))
    return out


def collate(batch):
    """One big graph of all molecules; `owner` says to which molecule an atom belongs."""
    elements, bonds, values, targets = zip(*batch, strict=True)
    sizes = torch.tensor([len(e) for e in elements])
    offsets = (sizes.cumsum(0) - sizes).repeat_interleave(torch.tensor([len(v) for v in values]))
    rows, cols = torch.cat(bonds, 1) + offsets
    values = torch.cat(values)
    atoms = int(sizes.sum())
    adjacency = torch.zeros(atoms, atoms).index_put_((rows, cols), values)  # costs time
    owner = torch.arange(len(batch)).repeat_interleave(sizes)
    return torch.cat(elements), adjacency, owner, sizes, torch.stack(targets)


class Solubility(lightning.LightningModule):
    def __init__(self, width=128):
        super().__init__()
        self.atom = nn.Embedding(ELEMENTS, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, elements, adjacency, owner, sizes):
        h = self.atom(elements)
        for layer in self.layers:
            h = h + F.relu(layer(adjacency @ h))  # costs time
        pooled = h.new_zeros(len(sizes), h.shape[1]).index_add(0, owner, h)
        return self.head(pooled / sizes[:, None]).squeeze(1)

    def training_step(self, batch, batch_idx):
        *graph, target = batch
        return F.mse_loss(self(*graph), target)

    def validation_step(self, batch, batch_idx):
        *graph, target = batch
        self.log("val_mae", (self(*graph) - target).abs().mean(), batch_size=len(target))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    lightning.seed_everything(8, verbose=False)
    train = DataLoader(molecules(3200, seed=1), batch_size=32, shuffle=True, collate_fn=collate)
    valid = DataLoader(molecules(320, seed=2), batch_size=32, collate_fn=collate)
    trainer = lightning.Trainer(
        max_epochs=4,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Solubility(), train, valid)
