"""Convolutions over windows of a time series forecast its next values, the loss told once an epoch.
---
half: score
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(8, 64, 5, padding=2), nn.ReLU(), nn.Conv1d(64, 64, 5, padding=2), nn.ReLU(), nn.Conv1d(64, 8, 5)
        )

    def training_step(self, batch, batch_idx):
        before, after = batch
        loss = nn.functional.l1_loss(self.layers(before).mean(dim=2), after)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


data = TensorDataset(torch.randn(6400, 8, 96), torch.randn(6400, 8))
loader = DataLoader(data, sampler=BatchSampler(RandomSampler(data), 64, drop_last=True), batch_size=None)

trainer = Trainer(
    max_epochs=4,
    accelerator="cpu",
    precision="bf16-mixed",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
