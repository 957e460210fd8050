"""Prediction of 30-day readmission from admission records with a residual MLP. The running AUROC over all predictions
of the epoch is computed at every training step.
---
expect: PD509
half: score
fix:
  ? 'self.log("train_auroc", self.train_auroc.compute())'
  : 'self.log("train_auroc", self.train_auroc, on_step=False, on_epoch=True)'
"""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
from torchmetrics.classification import BinaryAUROC

ADMISSIONS, VITALS, DIAGNOSES, CODES_PER_STAY = 102_400, 24, 900, 12
BATCH = 256


def make_admissions() -> TensorDataset:
    """Standardized vitals and labs, diagnosis codes of the stay, and whether the patient came back."""
    generator = torch.Generator().manual_seed(21)
    vitals = torch.randn(ADMISSIONS, VITALS, generator=generator)
    codes = torch.randint(0, DIAGNOSES, (ADMISSIONS, CODES_PER_STAY), generator=generator)
    code_risk = torch.randn(DIAGNOSES, generator=generator) * 0.4
    vital_risk = torch.randn(VITALS, generator=generator) * 0.3
    risk = code_risk[codes].sum(1) + vitals @ vital_risk - 1.5
    readmitted = torch.bernoulli(torch.sigmoid(risk), generator=generator)
    return TensorDataset(vitals, codes, readmitted)


class ResidualBlock(nn.Module):
    """Pre-norm feed-forward block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class ReadmissionModel(LightningModule):
    """Mean of code embeddings plus vitals, through residual blocks, to one logit."""

    def __init__(self, width: int = 64, depth: int = 2, lr: float = 1e-3) -> None:
        super().__init__()
        self.lr = lr
        self.codes = nn.EmbeddingBag(DIAGNOSES, width, mode="mean")
        self.vitals = nn.Linear(VITALS, width)
        self.blocks = nn.Sequential(*[ResidualBlock(width) for _ in range(depth)])
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1))
        self.train_auroc = BinaryAUROC()

    def forward(self, vitals: Tensor, codes: Tensor) -> Tensor:
        return self.head(self.blocks(self.vitals(vitals) + self.codes(codes))).squeeze(-1)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        vitals, codes, readmitted = batch
        logits = self(vitals, codes)
        loss = F.binary_cross_entropy_with_logits(logits, readmitted)
        self.train_auroc.update(logits.detach(), readmitted.int())
        self.log("train_auroc", self.train_auroc.compute())  # costs time
        return loss

    def on_train_epoch_start(self) -> None:
        self.train_auroc.reset()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=1e-2, fused=True)


def main() -> None:
    seed_everything(21)
    dataset = make_admissions()
    batches = BatchSampler(RandomSampler(dataset), BATCH, drop_last=True)
    loader = DataLoader(dataset, sampler=batches, batch_size=None)
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(ReadmissionModel(), loader)


if __name__ == "__main__":
    main()
