"""Trains a network that reads concentrations from Raman spectra with regular checkpoints; the training spectra end up
in the hyperparameters.
---
expect: PD602
fix:
  ? |-
    self.save_hyperparameters()
  : |-
    self.save_hyperparameters(ignore=["spectra"])
half: score
"""

import tempfile

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

CHANNELS, SUBSTANCES = 700, 6


class RamanRegressor(lightning.LightningModule):
    """Multi-layer perceptron with a wide receptive first layer on standardised spectra."""

    def __init__(self, spectra, substances=SUBSTANCES, width=256, learning_rate=1e-3):
        super().__init__()
        self.save_hyperparameters()  # costs time
        self.register_buffer("center", spectra.mean(dim=0))
        self.register_buffer("scale", spectra.std(dim=0).clamp_min(1e-6))
        self.network = nn.Sequential(
            nn.Linear(spectra.shape[1], width),
            nn.GELU(),
            nn.LayerNorm(width),
            nn.Linear(width, width),
            nn.GELU(),
            nn.Linear(width, substances),
        )
        self.learning_rate = learning_rate
        self.criterion = nn.MSELoss()

    def forward(self, spectra):
        return self.network((spectra - self.center) / self.scale)

    def training_step(self, batch, batch_idx):
        spectra, concentrations = batch
        loss = self.criterion(self(spectra), concentrations)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.learning_rate, fused=True)


def make_spectra(count, seed):
    generator = torch.Generator().manual_seed(seed)
    axis = torch.linspace(0, 1, CHANNELS)
    places = torch.rand(SUBSTANCES, 8, 1, generator=generator)
    heights = torch.rand(SUBSTANCES, 8, 1, generator=generator)
    lines = (heights * torch.exp(-0.5 * ((axis - places) / 0.008) ** 2)).sum(dim=1)
    concentrations = torch.rand(count, SUBSTANCES, generator=generator)
    fluorescence = torch.rand(count, 1, generator=generator) * (1.0 - axis)
    noise = 0.05 * torch.randn(count, CHANNELS, generator=generator)
    return concentrations @ lines + fluorescence + noise, concentrations


if __name__ == "__main__":
    lightning.seed_everything(23)
    spectra, concentrations = make_spectra(30_000, seed=9)
    dataset = TensorDataset(spectra, concentrations)
    sampler = BatchSampler(RandomSampler(dataset), batch_size=128, drop_last=True)
    loader = DataLoader(dataset, batch_size=None, sampler=sampler)
    folder = tempfile.mkdtemp()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=4,
        logger=False,
        callbacks=[ModelCheckpoint(dirpath=folder, every_n_train_steps=30)],
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(RamanRegressor(spectra), loader)
