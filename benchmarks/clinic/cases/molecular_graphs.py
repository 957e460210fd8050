"""Regression of a molecular property with a message-passing network on batched graphs. The adjacency of a batch is kept
as one dense block-diagonal matrix.
---
expect: PD330
half: tune
fix:
  ? "adjacency = torch.sparse_coo_tensor(bonds, torch.ones(bonds.shape[1]), (count, count)).to_dense()"
  : "adjacency = torch.sparse_coo_tensor(bonds, torch.ones(bonds.shape[1]), (count, count)).coalesce()"
"""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

ELEMENTS, MOLECULES, BATCH = 9, 3200, 64
Batch = tuple[Tensor, Tensor, Tensor, Tensor]


class MoleculeDataset(Dataset):
    """Random trees with a few ring closures; the target depends on bonded pairs of elements."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(41)
        self.sizes = torch.randint(12, 29, (MOLECULES,), generator=generator)
        pair_energy = torch.randn(ELEMENTS, ELEMENTS, generator=generator)
        self.atoms, self.bonds, targets = [], [], []
        for size in self.sizes.tolist():
            atoms = torch.randint(0, ELEMENTS, (size,), generator=generator)
            child = torch.arange(1, size)
            parent = (torch.rand(size - 1, generator=generator) * child).long()
            ring = torch.randint(0, size, (2, 2), generator=generator)
            half = torch.cat([torch.stack([child, parent]), ring[:, ring[0] != ring[1]]], dim=1)
            self.atoms.append(atoms)
            self.bonds.append(torch.cat([half, half.flip(0)], dim=1))
            targets.append(pair_energy[atoms[half[0]], atoms[half[1]]].mean())
        self.targets = torch.stack(targets)

    def __len__(self) -> int:
        return MOLECULES

    def __getitem__(self, indices: list[int]) -> Batch:
        """A whole batch as one graph of disconnected molecules."""
        sizes = self.sizes[indices]
        offsets = (sizes.cumsum(0) - sizes).tolist()
        atoms = torch.cat([self.atoms[i] for i in indices])
        bonds = torch.cat([self.bonds[i] + offset for i, offset in zip(indices, offsets, strict=True)], dim=1)
        return atoms, bonds, torch.repeat_interleave(sizes), self.targets[indices]


class NeighborLayer(nn.Module):
    """Update every atom from itself and the sum over its neighbors."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own = nn.Linear(width, width)
        self.neighbors = nn.Linear(width, width, bias=False)
        self.norm = nn.LayerNorm(width)

    def forward(self, atoms: Tensor, adjacency: Tensor) -> Tensor:
        gathered = adjacency @ self.neighbors(atoms)  # costs time
        return atoms + F.relu(self.norm(self.own(atoms) + gathered))


class PropertyModel(LightningModule):
    """Element embedding, message passing, mean over atoms."""

    def __init__(self, width: int = 96, depth: int = 3, lr: float = 1e-3) -> None:
        super().__init__()
        self.lr = lr
        self.embed = nn.Embedding(ELEMENTS, width)
        self.layers = nn.ModuleList(NeighborLayer(width) for _ in range(depth))
        self.head = nn.Linear(width, 1)

    def forward(self, elements: Tensor, bonds: Tensor, molecule: Tensor, molecules: int) -> Tensor:
        count = elements.shape[0]
        adjacency = torch.sparse_coo_tensor(bonds, torch.ones(bonds.shape[1]), (count, count)).to_dense()
        atoms = self.embed(elements)
        for layer in self.layers:
            atoms = layer(atoms, adjacency)
        pooled = atoms.new_zeros(molecules, atoms.shape[1]).index_add_(0, molecule, atoms)
        sizes = torch.bincount(molecule, minlength=molecules).unsqueeze(1)
        return self.head(pooled / sizes).squeeze(-1)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        elements, bonds, molecule, targets = batch
        return F.mse_loss(self(elements, bonds, molecule, targets.shape[0]), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr, fused=True)


def main() -> None:
    seed_everything(41)
    dataset = MoleculeDataset()
    loader = DataLoader(dataset, sampler=BatchSampler(RandomSampler(dataset), BATCH, drop_last=True), batch_size=None)
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=6,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(PropertyModel(), loader)


if __name__ == "__main__":
    main()
