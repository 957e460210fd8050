"""An autoencoder was made double because NumPy's sensor readings are double.
---
expect:
- PD315
half: score
fix:
  'readings = make_readings(20_000)': 'readings = make_readings(20_000).astype(np.float32)'
  'self.double()  # the readings are float64, too': 'self.float()'
"""

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

N_SENSORS = 256


def make_readings(n):
    rng = np.random.default_rng(0)
    causes = rng.standard_normal((n, 12))
    return np.tanh(causes @ rng.standard_normal((12, N_SENSORS)) / 3) + 0.05 * rng.standard_normal((n, N_SENSORS))


class SensorAutoencoder(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(N_SENSORS, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 12)
        )
        self.decoder = nn.Sequential(
            nn.Linear(12, 256), nn.ReLU(), nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, N_SENSORS)
        )
        self.double()  # the readings are float64, too

    def training_step(self, batch, batch_idx):
        (readings,) = batch
        loss = F.mse_loss(self.decoder(self.encoder(readings)), readings)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


L.seed_everything(1)
readings = make_readings(20_000)
loader = DataLoader(TensorDataset(torch.from_numpy(readings)), batch_size=200, shuffle=True)
trainer = L.Trainer(
    accelerator="cpu",
    max_epochs=2,
    gradient_clip_val=1.0,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(SensorAutoencoder(), loader)
