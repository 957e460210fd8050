"""A convolutional VAE with a TensorBoard log at times, validation and a small checkpoint once an epoch.
---
half: score
"""

import tempfile

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

LATENT = 8


def make_strokes(n):
    generator = torch.Generator().manual_seed(0)
    angle = torch.rand(n, 1, 1, generator=generator) * torch.pi
    offset = torch.randn(n, 1, 1, generator=generator) * 3
    axis = torch.arange(28.0) - 13.5
    distance = axis[None, :, None] * angle.cos() + axis[None, None, :] * angle.sin() - offset
    return TensorDataset(torch.exp(-(distance**2) / 4).unsqueeze(1))


class StrokeVAE(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 24, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(24, 48, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(48 * 49, 2 * LATENT),
        )
        self.decoder = nn.Sequential(
            nn.Linear(LATENT, 48 * 49),
            nn.ReLU(),
            nn.Unflatten(1, (48, 7, 7)),
            nn.ConvTranspose2d(48, 24, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(24, 1, 4, stride=2, padding=1),
        )

    def elbo(self, images):
        mean, log_var = self.encoder(images).chunk(2, dim=1)
        z = mean + torch.randn_like(mean) * (log_var / 2).exp()
        reconstruction = F.binary_cross_entropy_with_logits(self.decoder(z), images, reduction="sum") / len(images)
        divergence = 0.5 * (mean**2 + log_var.exp() - 1 - log_var).sum(dim=1).mean()
        return reconstruction + divergence

    def training_step(self, batch, batch_idx):
        loss = self.elbo(batch[0])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.elbo(batch[0]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


L.seed_everything(1)
train, val = random_split(make_strokes(5_376), [5_120, 256])
with tempfile.TemporaryDirectory() as folder:
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=2,
        logger=TensorBoardLogger(folder),
        log_every_n_steps=50,
        callbacks=[ModelCheckpoint(monitor="val_loss")],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = StrokeVAE().to(memory_format=torch.channels_last)
    trainer.fit(model, DataLoader(train, batch_size=64, shuffle=True), DataLoader(val, batch_size=64))
