"""Predicts a binned distance map for toy protein chains from their residue sequence. The pair features are made by
pasting both residues' vectors together for every pair before a linear layer.
---
expect: [PD334, PD326]
fix:
  'left = h.unsqueeze(2).expand(-1, -1, h.size(1), -1)': 'w_left, w_right = self.pair_in.weight.chunk(2, dim=1)'
  'right = h.unsqueeze(1).expand(-1, h.size(1), -1, -1)': |2-
    left = nn.functional.linear(h, w_left, self.pair_in.bias)
            right = nn.functional.linear(h, w_right)
  'pair = self.pair_in(torch.cat([left, right], dim=-1))  # costs time': 'pair = left.unsqueeze(2) + right.unsqueeze(1)'
half: tune
"""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

RESIDUES, LENGTH, BINS = 20, 56, 10


def fold_chains(chains, seed):
    """Random sequences; the turn at each residue follows from its type, and so do the distances."""
    gen = torch.Generator().manual_seed(seed)
    sequence = torch.randint(0, RESIDUES, (chains, LENGTH), generator=gen)
    angle = torch.linspace(-1.1, 1.1, RESIDUES)[sequence].cumsum(dim=1)
    lift = torch.linspace(-0.4, 0.4, RESIDUES)[sequence.roll(3, dims=1)]
    steps = torch.stack([angle.cos(), angle.sin(), lift], dim=-1)
    place = steps.cumsum(dim=1)
    distance = torch.cdist(place, place)
    bins = (distance / 2.0).long().clamp(max=BINS - 1)
    return sequence, bins


class ContactNet(L.LightningModule):
    def __init__(self, dim=96, pair_dim=32, lr=2e-3):
        super().__init__()
        self.lr = lr
        self.residue = nn.Embedding(RESIDUES, dim)
        self.position = nn.Parameter(torch.randn(LENGTH, dim) * 0.02)
        self.encoder = nn.GRU(dim, dim // 2, batch_first=True, bidirectional=True)
        self.norm = nn.LayerNorm(dim)
        self.pair_in = nn.Linear(2 * dim, pair_dim)
        self.pair_out = nn.Linear(pair_dim, BINS)

    def forward(self, sequence):
        h = self.residue(sequence) + self.position
        h = self.norm(h + self.encoder(h)[0])
        left = h.unsqueeze(2).expand(-1, -1, h.size(1), -1)
        right = h.unsqueeze(1).expand(-1, h.size(1), -1, -1)
        pair = self.pair_in(torch.cat([left, right], dim=-1))  # costs time
        return self.pair_out(torch.relu(pair))

    def training_step(self, batch, batch_idx):
        sequence, bins = batch
        logits = self(sequence)
        loss = nn.functional.cross_entropy(logits.flatten(0, 2), bins.flatten())
        self.log("train_loss", loss, batch_size=len(sequence))
        return loss

    def validation_step(self, batch, batch_idx):
        sequence, bins = batch
        hit = (self(sequence).argmax(dim=-1) == bins).float().mean()
        self.log("val_hit_rate", hit, batch_size=len(sequence))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr, fused=True)


def main():
    L.seed_everything(21)
    train = DataLoader(TensorDataset(*fold_chains(640, seed=1)), batch_size=8, shuffle=True)
    val = DataLoader(TensorDataset(*fold_chains(32, seed=2)), batch_size=8)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=2,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(ContactNet(), train, val)
    print("train_loss", round(float(trainer.callback_metrics["train_loss"]), 4))


if __name__ == "__main__":
    main()
