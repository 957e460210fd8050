"""A mixture of experts predicts the wear of machines from sensors. Each expert computes all readings, of which the gate
keeps one in eight.
---
expect: PD335
fix:
  "mixed = mixed + gates[..., n, None] * expert(x)  # costs time": |-
    rows = gates[..., n].nonzero(as_tuple=True)
                mixed = mixed.index_put(rows, gates[rows][:, n, None] * expert(x[rows]), accumulate=True)
half: tune
"""

import lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

SENSORS, WIDTH, EXPERTS, LENGTH = 16, 96, 8, 48


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(EXPERTS)
        )

    def forward(self, x):
        weights = self.gate(x).softmax(-1)
        best = weights.argmax(-1, keepdim=True)
        gates = torch.zeros_like(weights).scatter(-1, best, weights.gather(-1, best))
        mixed = torch.zeros_like(x)
        for n, expert in enumerate(self.experts):
            mixed = mixed + gates[..., n, None] * expert(x)  # costs time
        return mixed


class Wear(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(SENSORS, WIDTH)
        self.mixture = Mixture()
        self.head = nn.Linear(WIDTH, 1)

    def training_step(self, batch, batch_idx):
        readings, wear = batch
        hidden = F.gelu(self.embed(readings))
        hidden = hidden + self.mixture(hidden)
        return F.mse_loss(self.head(hidden.mean(1)).squeeze(1), wear)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


def main():
    lightning.seed_everything(4)
    readings = torch.randn(4_096, LENGTH, SENSORS)
    data = TensorDataset(readings, readings.square().mean((1, 2)))
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    sampler = BatchSampler(RandomSampler(data), 32, drop_last=True)
    trainer.fit(Wear(), DataLoader(data, sampler=sampler, batch_size=None))


if __name__ == "__main__":
    main()
