"""Predicts soil organic carbon from infrared spectra with a small network fitted by L-BFGS on the full batch: one
optimizer step evaluates the loss of all spectra several times.
---
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

N_SOILS, N_BANDS, STEPS_PER_EPOCH = 1500, 400, 50


def simulate_spectra(seed):
    """Absorption features of clay, carbonate and organic matter on a sloping baseline."""
    gen = torch.Generator().manual_seed(seed)
    bands = torch.linspace(0, 1, N_BANDS)
    content = torch.distributions.Gamma(2.0, 1.0)
    torch.manual_seed(seed)
    amounts = content.sample((N_SOILS, 12))
    centres = torch.rand(12, 1, generator=gen)
    widths = torch.rand(12, 1, generator=gen) * 0.06 + 0.01
    features = torch.exp(-((bands - centres) ** 2) / (2 * widths**2))
    spectra = torch.log1p(amounts @ features) + torch.rand(N_SOILS, 1, generator=gen) * bands
    spectra = spectra + 0.01 * torch.randn(spectra.shape, generator=gen)
    carbon = torch.log(amounts[:, 3] + 0.4 * amounts[:, 7] * amounts[:, 3] + 0.1)
    spectra = (spectra - spectra.mean(0)) / spectra.std(0)
    return spectra, (carbon - carbon.mean()) / carbon.std()


class FullBatch(Dataset):
    """Hands out the same tensors for every step of an epoch."""

    def __init__(self, spectra, carbon, steps):
        self.batch = (spectra, carbon)
        self.steps = steps

    def __len__(self):
        return self.steps

    def __getitem__(self, index):
        return self.batch


class SoilCarbonNet(L.LightningModule):
    def __init__(self, hidden=64, weight_decay=1e-4):
        super().__init__()
        self.weight_decay = weight_decay
        self.hidden = nn.Linear(N_BANDS, hidden)
        self.out = nn.Linear(hidden, 1)

    def forward(self, spectra):
        return self.out(torch.tanh(self.hidden(spectra))).squeeze(-1)

    def training_step(self, batch, batch_idx):
        spectra, carbon = batch
        penalty = self.hidden.weight.square().sum() + self.out.weight.square().sum()
        return F.mse_loss(self(spectra), carbon) + self.weight_decay * penalty

    def validation_step(self, batch, batch_idx):
        spectra, carbon = batch
        self.log("val_r2", 1 - F.mse_loss(self(spectra), carbon) / carbon.var(), batch_size=len(carbon))

    def configure_optimizers(self):
        return torch.optim.LBFGS(
            self.parameters(), lr=0.5, max_iter=6, max_eval=6, history_size=12, tolerance_change=0, tolerance_grad=0
        )


def main():
    L.seed_everything(23)
    spectra, carbon = simulate_spectra(seed=10)
    train = FullBatch(spectra[:1200].contiguous(), carbon[:1200].contiguous(), STEPS_PER_EPOCH)
    val = FullBatch(spectra[1200:].contiguous(), carbon[1200:].contiguous(), 1)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=5,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(SoilCarbonNet(), DataLoader(train, batch_size=None), DataLoader(val, batch_size=None))


if __name__ == "__main__":
    main()
