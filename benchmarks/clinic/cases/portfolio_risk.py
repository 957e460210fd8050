"""Trains a network that predicts the joint distribution of the next day's returns of 32 assets (mean and Cholesky
factor) on simulated markets, by maximum likelihood. The factor is multiplied out to a covariance matrix, which
MultivariateNormal checks, factorizes and differentiates again for every sample; pass the factor itself as
scale_tril.
---
expect: PD335
fix:
  ? |2-
            covariance = factor @ factor.mT
            return MultivariateNormal(self.mean(state), covariance_matrix=covariance)  # costs time
  : |2-
            return MultivariateNormal(self.mean(state), scale_tril=factor)
half: tune
"""

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import MultivariateNormal
from torch.utils.data import DataLoader, Dataset

ASSETS = 32
SIGNALS = 60


class MarketDays(Dataset):
    """Daily signals and the returns (in percent) of the next day, whose correlation depends on the market's stress."""

    def __init__(self, n_days, seed):
        gen = torch.Generator().manual_seed(seed)
        loadings = torch.randn(ASSETS, 3, generator=torch.Generator().manual_seed(77)) * 0.5
        self.signals = torch.randn(n_days, SIGNALS, generator=gen)
        stress = torch.sigmoid(self.signals[:, :1] + 0.5 * self.signals[:, 1:2])
        factors = torch.randn(n_days, 3, generator=gen) * (0.3 + 1.5 * stress)
        drift = 0.1 * self.signals[:, 2 : 2 + ASSETS]
        noise = torch.randn(n_days, ASSETS, generator=gen) * 0.4
        self.returns = drift + factors @ loadings.T + noise

    def __len__(self):
        return len(self.returns)

    def __getitems__(self, indices):
        indices = torch.as_tensor(indices)
        return self.signals[indices], self.returns[indices]


class ReturnDistribution(nn.Module):
    def __init__(self, hidden=128):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(SIGNALS, hidden),
            nn.SiLU(),
            nn.Linear(hidden, hidden),
            nn.SiLU(),
        )
        self.mean = nn.Linear(hidden, ASSETS)
        self.log_scale = nn.Linear(hidden, ASSETS)
        self.lower = nn.Linear(hidden, ASSETS * (ASSETS - 1) // 2)
        self.register_buffer("rows_cols", torch.tril_indices(ASSETS, ASSETS, offset=-1))

    def forward(self, signals):
        state = self.trunk(signals)
        factor = torch.diag_embed(F.softplus(self.log_scale(state)) + 1e-2)
        factor[:, self.rows_cols[0], self.rows_cols[1]] = 0.1 * self.lower(state)
        covariance = factor @ factor.mT
        return MultivariateNormal(self.mean(state), covariance_matrix=covariance)  # costs time


class PortfolioRisk(L.LightningModule):
    def __init__(self, lr=1e-3):
        super().__init__()
        self.lr = lr
        self.model = ReturnDistribution()

    def training_step(self, batch, batch_idx):
        signals, returns = batch
        loss = -self.model(signals).log_prob(returns).mean()
        self.log("train_nll", loss, on_step=False, on_epoch=True, batch_size=len(returns))
        return loss

    def validation_step(self, batch, batch_idx):
        signals, returns = batch
        self.log("val_nll", -self.model(signals).log_prob(returns).mean(), batch_size=len(returns))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=1e-3, fused=True)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=self.trainer.max_epochs)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


def main():
    L.seed_everything(51)
    train = DataLoader(MarketDays(51200, seed=1), batch_size=256, shuffle=True, drop_last=True, collate_fn=tuple)
    val = DataLoader(MarketDays(2048, seed=2), batch_size=512, collate_fn=tuple)
    trainer = L.Trainer(
        max_epochs=5,
        accelerator="cpu",
        gradient_clip_val=5.0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(PortfolioRisk(), train, val)
    print({name: round(float(value), 4) for name, value in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
