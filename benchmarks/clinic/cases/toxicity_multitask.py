"""Predicts five toxicity endpoints of molecules from their fingerprints with a shared trunk and one head per endpoint,
in manual optimization. The mistake: each endpoint's loss is sent backward by itself through the shared trunk.
---
expect: PD331
fix:
  ? |2
                self.manual_backward(loss, retain_graph=True)  # costs time
                total += loss.detach()
  : |2
                total = total + loss
            self.manual_backward(total)
  ? |2
            self.log("train_loss", total, prog_bar=True)
  : |2
            self.log("train_loss", total.detach(), prog_bar=True)
half: tune
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset
from torchmetrics.classification import MultilabelAccuracy

BITS = 512
ENDPOINTS = ["liver", "heart", "kidney", "skin", "mutagenic"]
WEIGHTS = [1.0, 1.0, 0.5, 0.5, 2.0]


def make_molecules(count, seed):
    pattern = torch.randn(BITS, len(ENDPOINTS), generator=torch.Generator().manual_seed(99))
    generator = torch.Generator().manual_seed(seed)
    fingerprints = (torch.rand(count, BITS, generator=generator) < 0.1).float()
    scores = fingerprints @ pattern + torch.randn(count, len(ENDPOINTS), generator=generator)
    measured = torch.rand(count, len(ENDPOINTS), generator=generator) < 0.8
    return TensorDataset(fingerprints, (scores > 1).float(), measured.float())


def loader(molecules, batch_size, shuffle):
    sampler = RandomSampler(molecules) if shuffle else SequentialSampler(molecules)
    return DataLoader(molecules, sampler=BatchSampler(sampler, batch_size, drop_last=shuffle), batch_size=None)


class ToxicityNet(L.LightningModule):
    def __init__(self, width=320):
        super().__init__()
        self.automatic_optimization = False
        self.trunk = nn.Sequential(
            nn.Linear(BITS, width),
            nn.SiLU(),
            nn.LayerNorm(width),
            nn.Linear(width, width),
            nn.SiLU(),
            nn.LayerNorm(width),
            nn.Linear(width, width),
            nn.SiLU(),
            nn.LayerNorm(width),
        )
        self.heads = nn.ModuleDict({name: nn.Linear(width, 1) for name in ENDPOINTS})
        self.val_accuracy = MultilabelAccuracy(len(ENDPOINTS))

    def forward(self, fingerprints):
        shared = self.trunk(fingerprints)
        return {name: head(shared).squeeze(1) for name, head in self.heads.items()}

    def training_step(self, batch, batch_idx):
        fingerprints, toxic, measured = batch
        optimizer = self.optimizers()
        optimizer.zero_grad()
        logits = self(fingerprints)
        total = torch.zeros(())
        for column, name in enumerate(ENDPOINTS):
            raw = F.binary_cross_entropy_with_logits(logits[name], toxic[:, column], reduction="none")
            loss = WEIGHTS[column] * (raw * measured[:, column]).sum() / measured[:, column].sum().clamp_min(1)
            self.manual_backward(loss, retain_graph=True)  # costs time
            total += loss.detach()
        optimizer.step()
        self.log("train_loss", total, prog_bar=True)

    def validation_step(self, batch, batch_idx):
        fingerprints, toxic, _ = batch
        logits = torch.stack(list(self(fingerprints).values()), 1)
        self.val_accuracy.update(logits, toxic.int())
        self.log("val_accuracy", self.val_accuracy, prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=5e-4, weight_decay=0.01, fused=True)


def main():
    L.seed_everything(21)
    train, val = make_molecules(10_240, 0), make_molecules(1024, 1)
    trainer = L.Trainer(accelerator="cpu", max_epochs=4, logger=False, enable_checkpointing=False)
    trainer.fit(ToxicityNet(), loader(train, 256, True), loader(val, 512, False))


if __name__ == "__main__":
    main()
