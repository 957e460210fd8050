"""A callback keeps averaged weights: it deep-copies the network after each step and makes every average a new tensor.
---
expect: PD504
half: score
fix:
  'current = copy.deepcopy(pl_module.net).state_dict()  # costs time': |-
    averages, weights = list(self.average.values()), list(pl_module.net.state_dict().values())
  'for name, value in current.items():': 'torch._foreach_lerp_(averages, weights, 1 - DECAY)'
  '            self.average[name] = DECAY * self.average[name] + (1 - DECAY) * value  # costs time': ''
"""

import copy

import lightning as L
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

DECAY = 0.999


class AveragedWeights(L.Callback):
    def on_fit_start(self, trainer, pl_module):
        self.average = copy.deepcopy(pl_module.net).state_dict()

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        current = copy.deepcopy(pl_module.net).state_dict()  # costs time
        for name, value in current.items():
            self.average[name] = DECAY * self.average[name] + (1 - DECAY) * value  # costs time


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.LayerNorm(256), nn.Linear(256, 384), nn.GELU(), nn.Linear(384, 256))

    def forward(self, x):
        return x + self.layers(x)


class Denoiser(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(*(Block() for _ in range(10)))

    def training_step(self, batch, batch_idx):
        (x,) = batch
        noise = torch.randn_like(x)
        return nn.functional.mse_loss(self.net(x + noise), noise)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    L.seed_everything(1)
    data = TensorDataset(torch.randn(2400, 256))
    loader = DataLoader(data, sampler=BatchSampler(RandomSampler(data), 32, drop_last=True), batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=2,
        callbacks=[AveragedWeights()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Denoiser(), loader)
