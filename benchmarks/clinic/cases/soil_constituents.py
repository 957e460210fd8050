"""A 1-D network estimates water, clay, carbon and lime of soil samples from their infrared spectra.
The running rank correlation of the epoch is logged in each step: its compute() ranks all samples seen so far,
so that each step costs more than the one before; only the epoch's last value is ever used.
---
expect: PD509
fix:
  '        self.log("train_rank", self.rank.compute().mean())  # costs time': ""
  "        self.rank.reset()": |2-
            self.log("train_rank", self.rank.compute().mean())
            self.rank.reset()
half: score
"""

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from torchmetrics.regression import SpearmanCorrCoef

PROPERTIES = ("water", "clay", "carbon", "lime")
SAMPLES = 12800
BANDS = 256
BATCH = 64


class SoilSpectra(Dataset):
    """Absorbance spectra with overlapping bands of the four constituents; the lab gives them in steps of 0.01 %."""

    def __init__(self, count: int):
        position = torch.linspace(0.0, 1.0, BANDS)
        amount = torch.rand(count, len(PROPERTIES))
        centres = torch.tensor([0.2, 0.45, 0.6, 0.85])
        bands = torch.exp(-(((position[None, :] - centres[:, None]) / 0.07) ** 2))
        baseline = torch.randn(count, 1) * position + 0.5 * torch.randn(count, 1)
        self.spectra = amount @ bands + 0.3 * baseline + 0.02 * torch.randn(count, BANDS)
        self.amounts = torch.round(400.0 * amount**2) / 100.0

    def __len__(self) -> int:
        return len(self.amounts)

    def __getitems__(self, indices: list[int]):
        return self.spectra[indices], self.amounts[indices]


def as_is(batch):
    return batch


class SoilNet(L.LightningModule):
    def __init__(self, width: int = 16, lr: float = 1e-3):
        super().__init__()
        self.lr = lr
        self.trunk = nn.Sequential(
            nn.Conv1d(1, width, 7, stride=2, padding=3),
            nn.GELU(),
            nn.Conv1d(width, 2 * width, 5, stride=2, padding=2),
            nn.GELU(),
            nn.Conv1d(2 * width, 2 * width, 5, stride=2, padding=2),
            nn.GELU(),
            nn.Flatten(),
            nn.Linear(2 * width * BANDS // 8, 128),
            nn.GELU(),
            nn.Linear(128, len(PROPERTIES)),
        )
        self.rank = SpearmanCorrCoef(num_outputs=len(PROPERTIES))

    def forward(self, spectra: torch.Tensor) -> torch.Tensor:
        return self.trunk(spectra.unsqueeze(1))

    def training_step(self, batch, batch_idx):
        spectra, amounts = batch
        estimate = self(spectra)
        self.rank.update(estimate.detach(), amounts)
        self.log("train_rank", self.rank.compute().mean())  # costs time
        return F.smooth_l1_loss(estimate, amounts)

    def on_train_epoch_end(self):
        self.rank.reset()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr, fused=True)


def main() -> None:
    L.seed_everything(5)
    loader = DataLoader(
        SoilSpectra(SAMPLES),
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        collate_fn=as_is,
    )
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(SoilNet(), loader)
    print(f"rank correlation of the last epoch: {trainer.callback_metrics['train_rank']:.3f}")


if __name__ == "__main__":
    main()
