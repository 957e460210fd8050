"""A neural differential equation predicts the blood glucose of patients from meals and insulin; it is integrated with
the classical Runge-Kutta method, one interval between two readings after another.
---
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

READINGS = 10
LATENT = 12


def make_patients(n, substeps=8):
    """A minimal model with remote insulin action: inputs per interval, glucose readings at the interval ends."""
    meal = 3.0 * (torch.rand(n, READINGS) < 0.3) * torch.rand(n, READINGS)
    insulin = 2.0 * (torch.rand(n, READINGS) < 0.3) * torch.rand(n, READINGS)
    sensitivity, clearance = 0.3 + 0.4 * torch.rand(n), 0.1 + 0.1 * torch.rand(n)
    glucose, gut, action = 0.5 * torch.randn(n), torch.zeros(n), torch.zeros(n)
    traits = torch.stack([glucose, sensitivity, clearance], dim=1)
    readings = []
    for k in range(READINGS):
        for _ in range(substeps):
            dt = 1.0 / substeps
            gut = gut + dt * (meal[:, k] - 0.8 * gut)
            action = action + dt * (insulin[:, k] - 0.6 * action)
            glucose = glucose + dt * (0.8 * gut - sensitivity * action - clearance * glucose)
        readings.append(glucose)
    target = torch.stack(readings, dim=1)
    return traits, torch.stack([meal, insulin], dim=2), target + 0.02 * torch.randn_like(target)


class GlucoseODE(L.LightningModule):
    def __init__(self, hidden=128):
        super().__init__()
        self.initial = nn.Sequential(nn.Linear(3, hidden), nn.Tanh(), nn.Linear(hidden, LATENT))
        self.drive = nn.Linear(2, hidden)
        self.enter = nn.Linear(LATENT, hidden, bias=False)
        self.rate = nn.Sequential(nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, LATENT))
        self.read = nn.Linear(LATENT, 1)

    def slope(self, z, drive):
        return self.rate(self.enter(z) + drive)

    def forward(self, traits, inputs):
        z = self.initial(traits)
        states = []
        for drive in self.drive(inputs).unbind(1):
            k1 = self.slope(z, drive)
            k2 = self.slope(torch.add(z, k1, alpha=0.5), drive)
            k3 = self.slope(torch.add(z, k2, alpha=0.5), drive)
            k4 = self.slope(z + k3, drive)
            z = torch.add(z, k1 + 2 * (k2 + k3) + k4, alpha=1 / 6)
            states.append(z)
        return self.read(torch.stack(states, dim=1)).squeeze(-1)

    def training_step(self, batch, batch_idx):
        traits, inputs, glucose = batch
        loss = F.mse_loss(self(traits, inputs), glucose)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        traits, inputs, glucose = batch
        self.log("val_error", (self(traits, inputs) - glucose).abs().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


def main():
    L.seed_everything(19)
    traits, inputs, glucose = make_patients(6400)
    train = TensorDataset(traits[:6000], inputs[:6000], glucose[:6000])
    val = TensorDataset(traits[6000:], inputs[6000:], glucose[6000:])
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=3,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(GlucoseODE(), DataLoader(train, batch_size=60, shuffle=True), DataLoader(val, batch_size=400))


if __name__ == "__main__":
    main()
