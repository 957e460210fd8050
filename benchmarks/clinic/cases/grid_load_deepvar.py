"""Trains a DeepVAR-style LSTM that forecasts the joint distribution of electrical load over many substations.
The low-rank-plus-diagonal covariance is made dense and goes to MultivariateNormal, which factorizes it at full size.
---
expect: [PD330, PD335]
half: tune
fix:
  ? "joint = MultivariateNormal(mean, factor @ factor.mT + torch.diag_embed(diagonal))  # costs time"
  : "joint = LowRankMultivariateNormal(mean, factor, diagonal)"
"""

import math

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import LowRankMultivariateNormal, MultivariateNormal  # noqa: F401 - of the fix
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

SUBSTATIONS = 96
CONTEXT = 48
RANK = 6


class LoadHistory(Dataset[tuple[Tensor, Tensor]]):
    """Sliding windows over hourly loads that share a few regional factors."""

    def __init__(self, hours: int) -> None:
        generator = torch.Generator().manual_seed(29)
        time = torch.arange(hours)[:, None]
        daily = torch.sin(2 * math.pi * time / 24 + torch.rand(1, SUBSTATIONS, generator=generator))
        weekly = 0.5 * torch.cos(2 * math.pi * time / 168)
        regional = torch.randn(hours, RANK, generator=generator)
        loading = torch.randn(RANK, SUBSTATIONS, generator=generator)
        noise = torch.randn(hours, SUBSTATIONS, generator=generator)
        self.loads = daily + weekly + 0.2 * regional @ loading + 0.1 * noise
        self.span = torch.arange(CONTEXT + 1)

    def __len__(self) -> int:
        return len(self.loads) - CONTEXT

    def __getitem__(self, index: list[int]) -> tuple[Tensor, Tensor]:
        windows = self.loads[torch.tensor(index)[:, None] + self.span]
        return windows[:, :-1], windows[:, -1]


class DeepVAR(L.LightningModule):
    def __init__(self, hidden: int = 128, lr: float = 1e-3) -> None:
        super().__init__()
        self.lr = lr
        self.encoder = nn.LSTM(SUBSTATIONS, hidden, batch_first=True)
        self.mean = nn.Linear(hidden, SUBSTATIONS)
        self.diagonal = nn.Linear(hidden, SUBSTATIONS)
        self.factor = nn.Linear(hidden, SUBSTATIONS * RANK)

    def forward(self, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        states, _ = self.encoder(context)
        last = states[:, -1]
        factor = 0.1 * self.factor(last).unflatten(1, (SUBSTATIONS, RANK))
        return self.mean(last), factor, F.softplus(self.diagonal(last)) + 1e-3

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        context, upcoming = batch
        mean, factor, diagonal = self(context)
        joint = MultivariateNormal(mean, factor @ factor.mT + torch.diag_embed(diagonal))  # costs time
        loss = -joint.log_prob(upcoming).mean() / SUBSTATIONS
        self.log("train/nll", loss)
        self.log("train/rmse", (mean.detach() - upcoming).square().mean().sqrt())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=1e-5, fused=True)


def main() -> None:
    L.seed_everything(29)
    history = LoadHistory(hours=64 * 90 + CONTEXT)
    loader = DataLoader(history, sampler=BatchSampler(RandomSampler(history), 64, drop_last=True), batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        gradient_clip_val=10.0,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(DeepVAR(), loader)


if __name__ == "__main__":
    main()
