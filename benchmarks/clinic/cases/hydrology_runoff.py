"""Trains an LSTM that predicts the runoff of river basins from rain, temperature and basin properties; the validation
runs over its windows one by one.
---
expect: [PD612, PD601, PD111]
fix: {"batch_size=1)": "batch_size=250)"}
half: tune
"""

import lightning
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

WINDOW, FORCINGS, PROPERTIES = 60, 5, 8


def make_basins(basins, windows, seed):
    """Windows of daily forcings, properties of the basin, runoff of the last day from a leaking store."""
    rng = np.random.default_rng(seed)
    number = basins * windows
    properties = np.repeat(rng.standard_normal((basins, PROPERTIES), dtype=np.float32), windows, axis=0)
    forcing = rng.standard_normal((number, WINDOW, FORCINGS), dtype=np.float32)
    forcing[:, :, 0] = np.maximum(forcing[:, :, 0], 0) ** 2
    leak = 0.85 + 0.1 * np.tanh(properties[:, :1])
    memory = leak ** np.arange(WINDOW - 1, -1, -1, dtype=np.float32)
    runoff = (1 - leak[:, 0]) * (memory * forcing[:, :, 0]).sum(axis=1) * (1 + 0.2 * np.tanh(properties[:, 1]))
    return TensorDataset(*(torch.from_numpy(array.astype(np.float32)) for array in (forcing, properties, runoff)))


class RunoffModel(lightning.LightningModule):
    def __init__(self, width=64):
        super().__init__()
        self.basin = nn.Linear(PROPERTIES, 2 * width)
        self.lstm = nn.LSTM(FORCINGS, width, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, forcing, properties):
        state = torch.tanh(self.basin(properties)).unsqueeze(0).chunk(2, dim=2)
        hidden, _ = self.lstm(forcing, tuple(part.contiguous() for part in state))
        return self.head(hidden[:, -1]).squeeze(1)

    def training_step(self, batch, batch_idx):
        forcing, properties, runoff = batch
        return F.mse_loss(self(forcing, properties), runoff)

    def validation_step(self, batch, batch_idx):
        forcing, properties, runoff = batch
        error = F.mse_loss(self(forcing, properties), runoff)
        self.log("val_error", error, on_epoch=True, batch_size=len(runoff))

    def on_validation_epoch_end(self):
        if not self.trainer.sanity_checking:
            print(f"validation error {self.trainer.callback_metrics['val_error']:.4f}")

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3, fused=True)


def main():
    lightning.seed_everything(17)
    train = DataLoader(make_basins(basins=60, windows=80, seed=1), batch_size=96, shuffle=True, drop_last=True)
    val = DataLoader(make_basins(basins=25, windows=10, seed=2), batch_size=1)
    trainer = lightning.Trainer(
        max_epochs=6,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(RunoffModel(), train, val)


if __name__ == "__main__":
    main()
