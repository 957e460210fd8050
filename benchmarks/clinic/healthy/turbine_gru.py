"""A GRU predicts a turbine's state from a window of its sensors; it validates once an epoch.
---
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

N_SENSORS = 12
LENGTH = 40


def make_windows(n):
    generator = torch.Generator().manual_seed(0)
    speed = torch.rand(n, 1, 1, generator=generator) * 4 + 1
    phase = torch.rand(n, 1, N_SENSORS, generator=generator) * 6
    time = torch.arange(LENGTH).reshape(1, -1, 1) / LENGTH
    sensors = torch.sin(6 * speed * time + phase) + 0.1 * torch.randn(n, LENGTH, N_SENSORS, generator=generator)
    return TensorDataset(sensors, speed.flatten())


class TurbineModel(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(N_SENSORS, 80, num_layers=2, batch_first=True)
        self.head = nn.Linear(80, 1)

    def forward(self, sensors):
        states, _ = self.gru(sensors)
        return self.head(states[:, -1]).squeeze(1)

    def training_step(self, batch, batch_idx):
        loss = F.mse_loss(self(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", F.mse_loss(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3, fused=True)


L.seed_everything(1)
train, val = random_split(make_windows(7_040), [6_400, 640])
trainer = L.Trainer(
    accelerator="cpu",
    max_epochs=2,
    gradient_clip_val=1.0,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(TurbineModel(), DataLoader(train, batch_size=64, shuffle=True), DataLoader(val, batch_size=64))
