"""Distills a large model of peptide charge states into a small one that can run next to the mass spectrometer.
The forward pass of the fixed teacher is recorded by autograd, and the loss is propagated back through it.
---
expect: [PD323, PD337]
half: score
fix:
  ? "lecture = self.teacher(residues)  # costs time"
  : |-
    with torch.no_grad():
                lecture = self.teacher(residues)
"""

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

AMINO_ACIDS = 21
LENGTH = 30
CHARGES = 6
MAX_STEPS = 220


def peptides(count: int, seed: int) -> TensorDataset:
    """Random sequences; basic residues and the length decide about the charge."""
    generator = torch.Generator().manual_seed(seed)
    residues = torch.randint(1, AMINO_ACIDS, (count, LENGTH), generator=generator)
    size = torch.randint(7, LENGTH + 1, (count, 1), generator=generator)
    residues = residues.masked_fill(torch.arange(LENGTH) >= size, 0)
    basic = ((residues == 2) | (residues == 9) | (residues == 12)).sum(dim=1)
    return TensorDataset(residues, (basic + size.squeeze(1) // 14).clamp(max=CHARGES - 1))


class ChargeNet(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.residue = nn.Embedding(AMINO_ACIDS, width, padding_idx=0)
        self.layers = nn.ModuleList(nn.Conv1d(width, width, kernel_size=5, padding=2) for _ in range(depth))
        self.head = nn.Linear(width, CHARGES)

    def forward(self, residues: torch.Tensor) -> torch.Tensor:
        hidden = self.residue(residues).transpose(1, 2)
        for layer in self.layers:
            hidden = hidden + F.relu(layer(hidden))
        return self.head(hidden.mean(dim=2))


class ChargeDistillation(L.LightningModule):
    def __init__(self, temperature: float = 2.0, share: float = 0.7) -> None:
        super().__init__()
        self.temperature = temperature
        self.share = share
        self.teacher = ChargeNet(width=96, depth=4)
        self.student = ChargeNet(width=64, depth=3)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        residues, charge = batch
        lecture = self.teacher(residues)  # costs time
        answer = self.student(residues)
        soft = F.kl_div(
            F.log_softmax(answer / self.temperature, dim=1),
            F.softmax(lecture / self.temperature, dim=1),
            reduction="batchmean",
        )
        return self.share * self.temperature**2 * soft + (1.0 - self.share) * F.cross_entropy(answer, charge)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.student.parameters(), lr=1e-3, fused=True)


def main() -> None:
    L.seed_everything(64)
    dataset = peptides(count=16_000, seed=64)
    batches = BatchSampler(RandomSampler(dataset), batch_size=64, drop_last=True)
    loader = DataLoader(dataset, sampler=batches, batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=MAX_STEPS,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
    )
    trainer.fit(ChargeDistillation(), loader)


if __name__ == "__main__":
    main()
