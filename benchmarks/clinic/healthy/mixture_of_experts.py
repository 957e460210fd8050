"""A mixture of four experts with a router that picks one expert per row, and a balancing loss; small validation.
---
half: score
"""

import lightning as L
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

N_EXPERTS = 4


class Mixture(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.router = nn.Linear(width, N_EXPERTS)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(N_EXPERTS)
        )

    def forward(self, x):
        chances = self.router(x).softmax(-1)
        weight, choice = chances.max(-1)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            rows = (choice == index).nonzero().squeeze(-1)
            out = out.index_add(0, rows, expert(x[rows]) * weight[rows, None])
        load = nn.functional.one_hot(choice, N_EXPERTS).float().mean(0)
        return x + out, N_EXPERTS * (load * chances.mean(0)).sum()


class Experts(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 192)
        self.mixture = Mixture(192)
        self.last = nn.Linear(192, 16)

    def forward(self, x):
        hidden, balance = self.mixture(self.first(x))
        return self.last(hidden), balance

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits, balance = self(x)
        return nn.functional.cross_entropy(logits, y) + 0.01 * balance

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", nn.functional.cross_entropy(self(x)[0], y))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


def batches(n_rows):
    data = TensorDataset(torch.randn(n_rows, 64), torch.randint(0, 16, (n_rows,)))
    return DataLoader(data, sampler=BatchSampler(RandomSampler(data), 256, drop_last=True), batch_size=None)


if __name__ == "__main__":
    L.seed_everything(1)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Experts(), batches(80 * 256), batches(3 * 256))
