"""A small convolutional network predicts the color of roasted coffee from the curves of the roaster's sensors.
A penalty on correlated features is computed by a forward hook, which is registered again in every training step and
never removed, so that each forward pass runs all the hooks of the steps before.
---
expect: [PD611, PD605]
fix:
  ? |2-
            self.encoder.register_forward_hook(self.measure_redundancy)
            curves, color = batch
  : |2-
            curves, color = batch
  ? |2-
            self.redundancy = torch.zeros(())
  : |2-
            self.redundancy = torch.zeros(())
            self.encoder.register_forward_hook(self.measure_redundancy)
half: tune
"""

import math

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

SAMPLES = 128


def off_diagonal_power(features):
    """Mean squared correlation between different channels."""
    flat = features.transpose(0, 1).flatten(1)
    flat = flat - flat.mean(1, keepdim=True)
    flat = flat / (flat.square().mean(1, keepdim=True) + 1e-5).sqrt()
    correlation = flat @ flat.T / flat.shape[1]
    return correlation.triu(1).square().sum() / (len(flat) * (len(flat) - 1) / 2)


class RoastCurves(Dataset):
    """Bean temperature, air temperature, gas and fan of one roast, and the color on the Agtron scale."""

    def __init__(self, roasts):
        time = torch.linspace(0, 1, SAMPLES)
        charge = torch.rand(roasts, 1) * 0.3 + 0.85
        slope = torch.rand(roasts, 1) * 2 + 2
        length = torch.rand(roasts, 1) * 0.4 + 0.8
        gas = 1 - time * torch.rand(roasts, 1)
        fan = 0.3 + 0.5 * time * torch.rand(roasts, 1)
        air = charge + 0.5 * gas - 0.2 * fan
        bean = charge - 0.5 * torch.exp(-12 * time) + (1 - torch.exp(-slope * time * length)) * air
        curves = torch.stack((bean, air, gas, fan), 1)
        self.curves = curves + 0.03 * torch.randn_like(curves)
        development = bean[:, -20:].mean(1) + 0.6 * (bean > 1.2).float().mean(1) + 0.2 * fan.mean(1)
        self.color = (development - development.mean()) / development.std()

    def __len__(self):
        return len(self.color)

    def __getitems__(self, rows):
        rows = torch.as_tensor(rows)
        return self.curves[rows], self.color[rows]


class RoastModel(L.LightningModule):
    def __init__(self, width=32, penalty=0.05, lr=2e-3):
        super().__init__()
        self.penalty = penalty
        self.lr = lr
        self.encoder = nn.Sequential(
            nn.Conv1d(4, width, 7, padding=3),
            nn.GELU(),
            nn.Conv1d(width, width, 5, padding=2, stride=2),
            nn.GELU(),
            nn.Conv1d(width, width, 5, padding=2, stride=2),
            nn.GELU(),
        )
        self.head = nn.Sequential(nn.Linear(2 * width, 64), nn.GELU(), nn.Linear(64, 1))
        self.redundancy = torch.zeros(())

    def measure_redundancy(self, module, inputs, output):
        self.redundancy = off_diagonal_power(output)  # costs time

    def forward(self, curves):
        features = self.encoder(curves)
        pooled = torch.cat((features.mean(2), features.amax(2)), 1)
        return self.head(pooled).squeeze(1)

    def training_step(self, batch, batch_idx):
        self.encoder.register_forward_hook(self.measure_redundancy)
        curves, color = batch
        fit = F.mse_loss(self(curves), color)
        return fit + self.penalty * self.redundancy

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr, fused=True)


def identity(batch):
    return batch


def main():
    L.seed_everything(17)
    roasts = RoastCurves(2560)
    loader = DataLoader(roasts, batch_size=64, shuffle=True, drop_last=True, collate_fn=identity)
    model = RoastModel()
    trainer = L.Trainer(
        max_epochs=4,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader)
    model.eval()
    with torch.inference_mode():
        error = F.mse_loss(model(roasts.curves[:512]), roasts.color[:512])
    print(f"error of the color: {math.sqrt(error.item()):.3f} standard deviations")


if __name__ == "__main__":
    main()
