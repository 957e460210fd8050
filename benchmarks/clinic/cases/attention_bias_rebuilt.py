"""Each attention layer builds its constant table of distances (ALiBi) from Python lists in every forward pass.
---
expect: PD511
half: tune
fix:
  'import lightning as L': |-
    import functools

    import lightning as L
  'def distance_bias(n_heads, length):': |-
    @functools.lru_cache
    def distance_bias(n_heads, length):
"""

import lightning as L
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

N_HEADS = 8
LENGTH = 64
WIDTH = 96


def distance_bias(n_heads, length):
    slopes = [2.0 ** (-8.0 * (head + 1) / n_heads) for head in range(n_heads)]
    rows = range(length)
    return torch.tensor([[[-slope * abs(i - j) for j in rows] for i in rows] for slope in slopes])  # costs time


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mix = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 192), nn.GELU(), nn.Linear(192, WIDTH))

    def forward(self, x):
        q, k, v = self.mix(self.norm(x)).unflatten(-1, (3, N_HEADS, -1)).permute(2, 0, 3, 1, 4)
        bias = distance_bias(N_HEADS, x.shape[1])  # costs time
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.feed(x)


class Pulse(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, WIDTH), Layer(), Layer(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 12))

    def training_step(self, batch, batch_idx):
        (signal,) = batch
        return nn.functional.mse_loss(self.net(signal)[:, :-1], signal[:, 1:])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    L.seed_everything(1)
    signals = TensorDataset(torch.randn(800, LENGTH, 12))
    loader = DataLoader(signals, sampler=BatchSampler(RandomSampler(signals), 4, drop_last=True), batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Pulse(), loader)
