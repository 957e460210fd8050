"""Regresses energies of small molecules with message passing on padded graphs (adjacency by bond type, masked atoms).
---
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import EarlyStopping
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset
from torchmetrics import MeanAbsoluteError

ATOMS, ELEMENTS, BONDS = 20, 6, 3


def make_molecules(count, seed):
    generator = torch.Generator().manual_seed(seed)
    elements = torch.randint(0, ELEMENTS, (count, ATOMS), generator=generator)
    sizes = torch.randint(ATOMS - 3, ATOMS + 1, (count, 1), generator=generator)
    present = (torch.arange(ATOMS) < sizes).float()
    bonds = (torch.rand(count, BONDS, ATOMS, ATOMS, generator=generator) < 0.05).float().triu(1)
    bonds = (bonds + bonds.transpose(2, 3)) * (present[:, :, None] * present[:, None])[:, None]
    weight = elements.float() * present
    strength = torch.tensor([1.0, 2.0, 3.0])
    energies = torch.einsum("ni,nbij,nj,b->n", weight, bonds, weight, strength) + 5 * weight.sum(1)
    return elements, bonds, present, (energies - energies.mean()) / energies.std()


def loader(molecules, batch_size, shuffle):
    dataset = TensorDataset(*molecules)
    sampler = RandomSampler(dataset) if shuffle else SequentialSampler(dataset)
    return DataLoader(dataset, sampler=BatchSampler(sampler, batch_size, drop_last=shuffle), batch_size=None)


class MessagePassing(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.message = nn.Linear(width, BONDS * width, bias=False)
        self.update = nn.GRUCell(width, width)
        self.width = width

    def forward(self, atoms, bonds):
        messages = self.message(atoms).view(*atoms.shape[:2], BONDS, self.width).transpose(1, 2)
        received = torch.matmul(bonds, messages).sum(1)
        return self.update(received.flatten(0, 1), atoms.flatten(0, 1)).view_as(atoms)


class EnergyNet(L.LightningModule):
    def __init__(self, width=80, rounds=3):
        super().__init__()
        self.embed = nn.Embedding(ELEMENTS, width)
        self.rounds = nn.ModuleList(MessagePassing(width) for _ in range(rounds))
        self.readout = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))
        self.val_mae = MeanAbsoluteError()

    def forward(self, elements, bonds, present):
        atoms = self.embed(elements)
        for passing in self.rounds:
            atoms = passing(atoms, bonds)
        return (self.readout(atoms).squeeze(2) * present).sum(1) / ATOMS

    def training_step(self, batch, batch_idx):
        elements, bonds, present, energies = batch
        loss = F.smooth_l1_loss(self(elements, bonds, present), energies)
        self.log("train_loss", loss, batch_size=len(energies))
        return loss

    def validation_step(self, batch, batch_idx):
        elements, bonds, present, energies = batch
        self.val_mae.update(self(elements, bonds, present), energies)
        self.log("val_mae", self.val_mae, batch_size=len(energies), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


def main():
    L.seed_everything(37)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=5,
        callbacks=[EarlyStopping("val_mae", patience=4)],
        gradient_clip_val=5.0,
        log_every_n_steps=25,
    )
    trainer.fit(EnergyNet(), loader(make_molecules(2560, 0), 64, True), loader(make_molecules(256, 1), 128, False))


if __name__ == "__main__":
    main()
