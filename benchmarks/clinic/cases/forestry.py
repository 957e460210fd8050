"""Trains a shared convolutional trunk with heads for species, biomass and stem count of forest plots by manual
optimization; each of the three losses gets its own backward pass through the trunk.
---
expect: PD331
fix:
  ? |-
    for loss in losses:
                self.manual_backward(loss, retain_graph=True)  # costs time
  : "self.manual_backward(sum(losses))"
half: score
"""

import lightning
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

SPECIES = 5
RASTER = 48


def synthetic_plots(count, seed):
    """Canopy height rasters (with an intensity layer) of plots, and what the crew measured there."""
    gen = torch.Generator().manual_seed(seed)
    species = torch.randint(SPECIES, (count,), generator=gen)
    stems = torch.randint(4, 12, (count, 1, 1, 1), generator=gen).float()
    base = torch.rand(count, 1, 12, 12, generator=gen) * stems / 6
    canopy = F.interpolate(base, size=(RASTER, RASTER), mode="bilinear", align_corners=False)
    intensity = canopy * (0.5 + 0.2 * species.view(-1, 1, 1, 1)) + 0.1 * torch.randn(canopy.shape, generator=gen)
    biomass = (canopy**2).mean((1, 2, 3)) + 0.1 * species
    return torch.cat([canopy, intensity], 1), species, biomass, stems.flatten()


class PlotNet(lightning.LightningModule):
    def __init__(self, width=24):
        super().__init__()
        self.automatic_optimization = False
        self.trunk = nn.Sequential(
            nn.Conv2d(2, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(2 * width, 4 * width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.species = nn.Linear(4 * width, SPECIES)
        self.biomass = nn.Linear(4 * width, 1)
        self.stems = nn.Linear(4 * width, 1)

    def training_step(self, batch, batch_idx):
        raster, species, biomass, stems = batch
        optimizer = self.optimizers()
        features = self.trunk(raster)
        losses = (
            F.cross_entropy(self.species(features), species),
            0.5 * F.smooth_l1_loss(self.biomass(features).squeeze(1), biomass),
            0.1 * F.poisson_nll_loss(self.stems(features).squeeze(1), stems),
        )
        optimizer.zero_grad()
        for loss in losses:
            self.manual_backward(loss, retain_graph=True)  # costs time
        self.clip_gradients(optimizer, gradient_clip_val=5.0, gradient_clip_algorithm="norm")
        optimizer.step()

    def on_train_epoch_end(self):
        self.lr_schedulers().step()

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.trainer.max_epochs)]


if __name__ == "__main__":
    lightning.seed_everything(17, verbose=False)
    plots = TensorDataset(*synthetic_plots(816, seed=6))
    loader = DataLoader(plots, batch_size=16, shuffle=True)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(PlotNet(), loader)
