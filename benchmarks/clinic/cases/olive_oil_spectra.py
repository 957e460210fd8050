"""An encoder with low-rank layers estimates the shares of cheaper oils in olive oil from near-infrared spectra.
Each low-rank layer first multiplies its two thin factors to the full matrix and then applies that to the batch; both
products in the other order never build the large matrix and need a fraction of the arithmetic, in backward as well.
---
expect: PD335
fix:
  ? |2-
            return F.linear(x, self.up @ self.down, self.bias)  # costs time
  : |2-
            return F.linear(F.linear(x, self.down), self.up, self.bias)
half: tune
"""

import math

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

BANDS = 1024
OILS = 5


class OilSpectra(Dataset):
    """Spectra of mixtures: sums of the smooth spectra of five oils with scatter, baseline and noise."""

    def __init__(self, samples):
        band = torch.linspace(0, 1, BANDS)
        centre = torch.rand(OILS, 12, 1)
        height = torch.rand(OILS, 12, 1)
        pure = (height * torch.exp(-(((band - centre) / 0.04) ** 2))).sum(1)
        self.shares = torch.softmax(2 * torch.randn(samples, OILS), 1)
        scatter = 1 + 0.1 * torch.randn(samples, 1)
        baseline = 0.2 * torch.randn(samples, 1) * band
        self.spectra = (self.shares @ pure) * scatter + baseline + 0.02 * torch.randn(samples, BANDS)
        self.spectra -= self.spectra.mean(0)

    def __len__(self):
        return len(self.shares)

    def __getitems__(self, rows):
        rows = torch.as_tensor(rows)
        return self.spectra[rows], self.shares[rows]


class LowRankLinear(nn.Module):
    """A linear layer whose weight is the product of two thin matrices."""

    def __init__(self, inputs, outputs, rank):
        super().__init__()
        self.down = nn.Parameter(torch.randn(rank, inputs) / math.sqrt(inputs))
        self.up = nn.Parameter(torch.randn(outputs, rank) / math.sqrt(rank))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return F.linear(x, self.up @ self.down, self.bias)  # costs time


class OilModel(L.LightningModule):
    def __init__(self, width=768, rank=32, lr=1e-3):
        super().__init__()
        self.lr = lr
        self.encoder = nn.Sequential(
            LowRankLinear(BANDS, width, rank),
            nn.LayerNorm(width),
            nn.GELU(),
            LowRankLinear(width, width, rank),
            nn.LayerNorm(width),
            nn.GELU(),
        )
        self.head = nn.Sequential(nn.Linear(width, 384), nn.GELU(), nn.Linear(384, OILS))

    def forward(self, spectra):
        return self.head(self.encoder(spectra))

    def training_step(self, batch, batch_idx):
        spectra, shares = batch
        return F.cross_entropy(self(spectra), shares)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr, fused=True)


def identity(batch):
    return batch


def main():
    L.seed_everything(41)
    oils = OilSpectra(12_800)
    loader = DataLoader(oils, batch_size=128, shuffle=True, drop_last=True, collate_fn=identity)
    model = OilModel()
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader)
    model.eval()
    with torch.inference_mode():
        error = (model(oils.spectra[:2000]).softmax(1) - oils.shares[:2000]).abs().mean()
    print(f"mean error of the shares: {error:.4f}")


if __name__ == "__main__":
    main()
