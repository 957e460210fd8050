"""Fits a network that forecasts the joint distribution of the next day's returns of a basket of stocks.
The predicted Cholesky factor is multiplied out to a covariance, which the distribution factorizes all over again.
---
expect: [PD330, PD335]
half: tune
fix:
  ? "return MultivariateNormal(mean, covariance_matrix=factor @ factor.mT)  # costs time"
  : "return MultivariateNormal(mean, scale_tril=factor)"
"""

from __future__ import annotations

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import MultivariateNormal
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

NUM_ASSETS = 48
LOOKBACK = 20


class DailyReturns(Dataset):
    """Windows of daily returns with a common factor of changing volatility, in percent."""

    def __init__(self, num_days: int) -> None:
        volatility = 0.6 + 0.4 * torch.sin(torch.arange(num_days) / 40.0)
        market = volatility[:, None] * torch.randn(num_days, 1)
        loading = 0.5 + torch.rand(NUM_ASSETS)
        returns = market * loading + 0.7 * torch.randn(num_days, NUM_ASSETS)
        windows = returns.unfold(0, LOOKBACK + 1, 1)
        self.history = windows[:, :, :LOOKBACK].flatten(1).contiguous()
        self.target = windows[:, :, LOOKBACK].contiguous()

    def __len__(self) -> int:
        return len(self.target)

    def __getitem__(self, index: list[int]) -> tuple[Tensor, Tensor]:
        return self.history[index], self.target[index]


class ResidualBlock(nn.Module):
    """Pre-norm residual MLP block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 2 * width)
        self.reduce = nn.Linear(2 * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.reduce(F.silu(self.expand(self.norm(hidden))))


class JointForecaster(nn.Module):
    """Maps a window of returns to a multivariate normal distribution of the next returns."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Linear(NUM_ASSETS * LOOKBACK, width)
        self.blocks = nn.Sequential(*(ResidualBlock(width) for _ in range(depth)))
        self.mean = nn.Linear(width, NUM_ASSETS)
        self.scale = nn.Linear(width, NUM_ASSETS)
        self.off_diagonal = nn.Linear(width, NUM_ASSETS * NUM_ASSETS)
        nn.init.normal_(self.off_diagonal.weight, std=1e-3)

    def forward(self, history: Tensor) -> MultivariateNormal:
        hidden = self.blocks(self.embed(history))
        mean = self.mean(hidden)
        scale = F.softplus(self.scale(hidden)) + 0.05
        lower = self.off_diagonal(hidden).unflatten(1, (NUM_ASSETS, NUM_ASSETS)).tril(-1)
        factor = lower + torch.diag_embed(scale)
        return MultivariateNormal(mean, covariance_matrix=factor @ factor.mT)  # costs time


class ReturnDistribution(L.LightningModule):
    """Maximum-likelihood training of the joint forecaster."""

    def __init__(self, width: int = 160, depth: int = 2, learning_rate: float = 3e-4) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.forecaster = JointForecaster(width, depth)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        history, target = batch
        loss = -self.forecaster(history).log_prob(target).mean() / NUM_ASSETS
        self.log("train/nll", loss)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        history, target = batch
        forecast = self.forecaster(history)
        self.log("val/nll", -forecast.log_prob(target).mean() / NUM_ASSETS, batch_size=len(target))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.learning_rate, weight_decay=1e-3, fused=True)


def make_loader(days: Dataset, batch_size: int) -> DataLoader:
    sampler = BatchSampler(RandomSampler(days), batch_size=batch_size, drop_last=True)
    return DataLoader(days, sampler=sampler, batch_size=None)


def main() -> None:
    L.seed_everything(41)
    train, val = DailyReturns(num_days=128 * 100 + LOOKBACK), DailyReturns(num_days=128 * 4 + LOOKBACK)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=4,
        gradient_clip_val=5.0,
        num_sanity_val_steps=0,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(ReturnDistribution(), make_loader(train, 128), make_loader(val, 128))


if __name__ == "__main__":
    main()
