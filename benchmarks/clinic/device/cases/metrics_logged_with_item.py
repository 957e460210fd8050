"""Twenty metrics are read as floats and written to a file at each step.
---
expect: [PD501, PD502, PD506]
half: tune
fix:
  for index in range(20): for index in range(0 if batch_idx % 50 else 20)
  log_every_n_steps=1,: log_every_n_steps=50,
"""

import tempfile

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        hidden = [layer for _ in range(4) for layer in (nn.Linear(2048, 2048), nn.ReLU())]
        self.layers = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), *hidden, nn.Linear(2048, 20))

    def training_step(self, batch, batch_idx):
        errors = self.layers(batch).float().square().mean(0)
        for index in range(20):
            self.log(f"error_{index}", errors[index].item(), on_step=True)  # costs time
        return errors.mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-4, fused=True)


batches = [torch.rand(16384, 64) for _ in range(10)] * 15
loader = DataLoader(batches, batch_size=None, shuffle=True, pin_memory=True)

trainer = Trainer(
    max_epochs=3,
    accelerator="cuda",
    devices=1,
    logger=CSVLogger(tempfile.mkdtemp()),
    enable_checkpointing=False,
    enable_progress_bar=False,
    precision="bf16-mixed",
    log_every_n_steps=1,
)
trainer.fit(Net(), loader)
