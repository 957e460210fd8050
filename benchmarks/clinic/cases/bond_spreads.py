"""Forecasts credit spreads of bonds from the recent curve of their issuer with a small transformer.
The whole training runs in float64.
---
expect: PD315
half: score
fix:
  ? 'precision="64-true",'
  : 'precision="32-true",'
"""

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

DAYS = 30
TENORS = 8
MAX_STEPS = 170


def issuer_curves(issuers: int, seed: int) -> TensorDataset:
    """Spread curves follow a mean-reverting level and slope; the target is the curve five days ahead."""
    generator = torch.Generator().manual_seed(seed)
    days = DAYS + 5
    shocks = torch.randn(issuers, days, 2, generator=generator)
    factors = torch.zeros(issuers, days, 2)
    for day in range(1, days):
        factors[:, day] = 0.95 * factors[:, day - 1] + 0.3 * shocks[:, day]
    tenor = torch.linspace(-1.0, 1.0, TENORS)
    curves = (
        factors[..., :1] + factors[..., 1:] * tenor + 0.05 * torch.randn(issuers, days, TENORS, generator=generator)
    )
    return TensorDataset(curves[:, :DAYS].contiguous(), curves[:, -1].contiguous())


class SpreadNet(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.lift = nn.Linear(TENORS, width)
        self.day = nn.Parameter(0.02 * torch.randn(DAYS, width))
        layer = nn.TransformerEncoderLayer(
            width, nhead=4, dim_feedforward=4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(width, TENORS)

    def forward(self, curves: torch.Tensor) -> torch.Tensor:
        hidden = self.encoder(self.lift(curves) + self.day)
        return curves[:, -1] + self.head(hidden[:, -1])


class SpreadModule(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = SpreadNet()

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        curves, ahead = batch
        return F.mse_loss(self.net(curves), ahead)

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-3, total_steps=MAX_STEPS)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def main() -> None:
    L.seed_everything(30)
    dataset = issuer_curves(issuers=12_000, seed=30)
    batches = BatchSampler(RandomSampler(dataset), batch_size=64, drop_last=True)
    loader = DataLoader(dataset, sampler=batches, batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=MAX_STEPS,
        precision="64-true",
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
    )
    trainer.fit(SpreadModule(), loader)


if __name__ == "__main__":
    main()
