"""Adaptive gradient clipping by hand: the norm of each row of each weight in a Python loop.
---
expect: PD507
half: tune
fix:
  'for gradient, weight in zip(parameter.grad, parameter.detach(), strict=True):  # costs time': |-
    for gradient, weight in [(parameter.grad, parameter.detach())]:
  'limit = CLIPPING * weight.norm().clamp(min=1e-3)  # costs time': |-
    limit = CLIPPING * weight.norm(dim=-1, keepdim=True).clamp(min=1e-3)
  'norm = gradient.norm()  # costs time': 'norm = gradient.norm(dim=-1, keepdim=True)'
"""

import lightning as L
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

CLIPPING = 0.05


class Regressor(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 96), nn.GELU(), nn.Linear(96, 96), nn.GELU(), nn.Linear(96, 8)
        )

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        for parameter in self.parameters():
            if parameter.dim() < 2:
                continue
            for gradient, weight in zip(parameter.grad, parameter.detach(), strict=True):  # costs time
                limit = CLIPPING * weight.norm().clamp(min=1e-3)  # costs time
                norm = gradient.norm()  # costs time
                gradient.mul_((limit / (norm + 1e-6)).clamp(max=1.0))  # costs time

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    L.seed_everything(1)
    data = TensorDataset(torch.randn(51200, 64), torch.randn(51200, 8))
    loader = DataLoader(data, sampler=BatchSampler(RandomSampler(data), 512, drop_last=True), batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Regressor(), loader)
