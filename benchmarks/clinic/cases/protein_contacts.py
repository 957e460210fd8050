"""Predicts residue contact maps from sequence with a 1D convolutional encoder and a pairwise head. The mistake is in
the pairwise head, which concatenates the features of both residues for every pair before a linear layer.
---
expect: PD334
half: tune
fix:
  ? "left = h.unsqueeze(2).expand(-1, -1, length, -1)"
  : "left = F.linear(h, self.pair.weight[:, :dim], self.pair.bias).unsqueeze(2)"
  ? "right = h.unsqueeze(1).expand(-1, length, -1, -1)"
  : "right = F.linear(h, self.pair.weight[:, dim:]).unsqueeze(1)"
  ? "length = h.shape[1]"
  : "dim = h.shape[-1]"
  ? "self.pair(torch.cat([left, right], dim=-1))"
  : "left + right"
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

AMINO_ACIDS = 20


def make_proteins(num: int, length: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random sequences and contact maps of self-avoiding-like 3D chains."""
    gen = torch.Generator().manual_seed(seed)
    residues = torch.randint(0, AMINO_ACIDS, (num, length), generator=gen)
    bias = torch.randn(AMINO_ACIDS, 3, generator=gen)
    steps = 0.6 * torch.randn(num, length, 3, generator=gen) + 0.4 * bias[residues]
    steps = F.normalize(steps - steps.mean(dim=1, keepdim=True), dim=-1)
    coords = 3.8 * steps.cumsum(dim=1)
    contacts = torch.cdist(coords, coords) < 12.0
    return residues, contacts


class ResidueEncoder(nn.Module):
    """Embedding followed by residual dilated convolutions along the chain."""

    def __init__(self, dim: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(AMINO_ACIDS, dim)
        self.blocks = nn.ModuleList(nn.Conv1d(dim, dim, 3, padding=2**i, dilation=2**i) for i in range(depth))

    def forward(self, residues: torch.Tensor) -> torch.Tensor:
        h = self.embed(residues).transpose(1, 2)
        for block in self.blocks:
            h = h + F.gelu(block(h))
        return h.transpose(1, 2)


class ContactHead(nn.Module):
    """Scores every pair of residues."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.pair = nn.Linear(2 * dim, hidden)
        self.score = nn.Linear(hidden, 1)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        length = h.shape[1]
        left = h.unsqueeze(2).expand(-1, -1, length, -1)
        right = h.unsqueeze(1).expand(-1, length, -1, -1)
        z = self.pair(torch.cat([left, right], dim=-1))  # costs time
        return self.score(F.relu(z)).squeeze(-1)


class ContactPredictor(L.LightningModule):
    def __init__(self, dim: int = 64, depth: int = 4, hidden: int = 16, lr: float = 2e-3) -> None:
        super().__init__()
        self.encoder = ResidueEncoder(dim, depth)
        self.head = ContactHead(dim, hidden)
        self.lr = lr
        self.register_buffer("pos_weight", torch.tensor(4.0))

    def forward(self, residues: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.encoder(residues))
        return 0.5 * (logits + logits.transpose(1, 2))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> torch.Tensor:
        residues, contacts = batch
        logits = self(residues)
        loss = F.binary_cross_entropy_with_logits(logits, contacts.float(), pos_weight=self.pos_weight)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=0.01)


def main() -> None:
    L.seed_everything(11)
    residues, contacts = make_proteins(num=480, length=80, seed=11)
    loader = DataLoader(TensorDataset(residues, contacts), batch_size=8, shuffle=True, drop_last=True)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(ContactPredictor(), loader)
    print(f"train loss {trainer.callback_metrics['train_loss']:.4f}")


if __name__ == "__main__":
    main()
