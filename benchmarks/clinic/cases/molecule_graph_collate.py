"""Graph property regression on random molecule-like graphs with a dense message-passing network; the padded adjacency
of every batch is filled edge by edge in Python.
---
expect: PD108
half: score
fix:
  ? |2-
            for u, v in g["bonds"].tolist():
                adj[i, u, v] = 1.0  # costs time
                adj[i, v, u] = 1.0  # costs time
  : |2-
            u, v = g["bonds"].T
            adj[i, u, v] = 1.0
            adj[i, v, u] = 1.0
"""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, Dataset

ATOM_TYPES = 12


class MoleculeDataset(Dataset):
    def __init__(self, n=1600, min_atoms=12, max_atoms=32):
        gen = torch.Generator().manual_seed(0)
        self.graphs = []
        for _ in range(n):
            size = int(torch.randint(min_atoms, max_atoms + 1, (1,), generator=gen))
            child = torch.arange(1, size)
            parent = (torch.rand(size - 1, generator=gen) * child).long()
            rings = torch.randint(0, size, (size // 6, 2), generator=gen)
            bonds = torch.cat([torch.stack([child, parent], 1), rings])
            atoms = torch.randint(0, ATOM_TYPES, (size,), generator=gen)
            target = atoms.float().mean() + 0.1 * len(bonds) / size
            self.graphs.append({"atoms": atoms, "bonds": bonds, "target": target})

    def __len__(self):
        return len(self.graphs)

    def __getitem__(self, idx):
        return self.graphs[idx]


def collate_graphs(graphs):
    n_max = max(len(g["atoms"]) for g in graphs)
    atoms = torch.zeros(len(graphs), n_max, dtype=torch.long)
    mask = torch.zeros(len(graphs), n_max)
    adj = torch.zeros(len(graphs), n_max, n_max)
    for i, g in enumerate(graphs):
        size = len(g["atoms"])
        atoms[i, :size] = g["atoms"]
        mask[i, :size] = 1.0
        for u, v in g["bonds"].tolist():
            adj[i, u, v] = 1.0  # costs time
            adj[i, v, u] = 1.0  # costs time
    target = torch.stack([g["target"] for g in graphs])
    return atoms, adj, mask, target


class GraphConv(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.self_lin = nn.Linear(dim, dim)
        self.nbr_lin = nn.Linear(dim, dim, bias=False)
        self.norm = nn.LayerNorm(dim)

    def forward(self, h, adj):
        return h + F.relu(self.norm(self.self_lin(h) + torch.bmm(adj, self.nbr_lin(h))))


class PropertyNet(LightningModule):
    def __init__(self, dim=64, depth=3):
        super().__init__()
        self.embed = nn.Embedding(ATOM_TYPES, dim)
        self.convs = nn.ModuleList(GraphConv(dim) for _ in range(depth))
        self.head = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 1))

    def training_step(self, batch, batch_idx):
        atoms, adj, mask, target = batch
        adj = adj / adj.sum(-1, keepdim=True).clamp(min=1.0)
        h = self.embed(atoms)
        for conv in self.convs:
            h = conv(h, adj)
        pooled = (h * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
        loss = F.mse_loss(self.head(pooled).squeeze(-1), target)
        self.log("train_mse", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    seed_everything(3)
    loader = DataLoader(MoleculeDataset(), batch_size=32, shuffle=True, collate_fn=collate_graphs)
    trainer = Trainer(
        accelerator="cpu", max_epochs=8, enable_progress_bar=False, enable_checkpointing=False, logger=False
    )
    trainer.fit(PropertyNet(), loader)
