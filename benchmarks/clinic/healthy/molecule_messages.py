"""Trains a dense message-passing network that regresses a property of small synthetic molecules.
---
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

ELEMENTS, ATOMS, BONDS = 9, 20, 3


def molecules(count, seed):
    gen = torch.Generator().manual_seed(seed)
    size = torch.randint(ATOMS // 2, ATOMS + 1, (count, 1), generator=gen)
    present = torch.arange(ATOMS) < size
    element = torch.randint(1, ELEMENTS, (count, ATOMS), generator=gen) * present
    pair = torch.rand(count, BONDS, ATOMS, ATOMS, generator=gen) < 0.06
    bond = (pair | pair.transpose(2, 3)) & present[:, None, :, None] & present[:, None, None, :]
    bond = bond.float()
    charge = torch.sin(1.7 * element.float()) * present
    strength = torch.tensor([1.0, 1.6, 2.2]).view(1, BONDS, 1, 1)
    energy = ((bond * strength).sum(1) @ charge.unsqueeze(2)).squeeze(2)
    target = (charge * torch.tanh(energy)).sum(1) + 0.05 * torch.randn(count, generator=gen)
    return TensorDataset(element, bond, present.float(), target)


class Interaction(nn.Module):
    """Sums neighbor messages per bond type with one batched matrix multiplication."""

    def __init__(self, width):
        super().__init__()
        self.message = nn.Linear(width, BONDS * width)
        self.update = nn.GRUCell(width, width)

    def forward(self, atoms, bond):
        b, n, w = atoms.shape
        sent = self.message(atoms).view(b, n, BONDS, w).transpose(1, 2).reshape(b, BONDS * n, w)
        received = torch.bmm(bond, sent)
        return self.update(received.view(b * n, w), atoms.reshape(b * n, w)).view(b, n, w)


class PropertyNet(L.LightningModule):
    def __init__(self, width=96, rounds=3):
        super().__init__()
        self.element = nn.Embedding(ELEMENTS, width, padding_idx=0)
        self.rounds = nn.ModuleList([Interaction(width) for _ in range(rounds)])
        self.gate = nn.Linear(2 * width, width)
        self.value = nn.Linear(width, width)
        self.readout = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, element, bond, present):
        b, k, n, _ = bond.shape
        wide = bond.transpose(1, 2).reshape(b, n, k * n)
        start = atoms = self.element(element)
        for interaction in self.rounds:
            atoms = interaction(atoms, wide)
        gate = torch.sigmoid(self.gate(torch.cat([start, atoms], dim=2)))
        pooled = (gate * self.value(atoms) * present.unsqueeze(2)).sum(1)
        return self.readout(pooled).squeeze(1)

    def training_step(self, batch, batch_idx):
        element, bond, present, target = batch
        loss = F.mse_loss(self(element, bond, present), target)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        element, bond, present, target = batch
        error = (self(element, bond, present) - target).abs().mean()
        self.log("val_mae", error, batch_size=len(target))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)]


def batched(data, size, shuffle):
    order = RandomSampler(data) if shuffle else SequentialSampler(data)
    return DataLoader(data, sampler=BatchSampler(order, size, drop_last=shuffle), batch_size=None)


def main():
    L.seed_everything(71)
    train, val = molecules(4800, 1), molecules(512, 2)
    trainer = L.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, max_epochs=4
    )
    trainer.fit(PropertyNet(), batched(train, 64, True), batched(val, 256, False))
    print({k: round(float(v), 4) for k, v in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
