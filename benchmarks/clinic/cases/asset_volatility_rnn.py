"""A recurrent network with an orthogonal transition forecasts the volatility of assets, and its time goes to
building that transition again on every day of the sequence.
---
expect: PD328
fix:
  h = x.new_zeros(len(x), self.hidden): h = x.new_zeros(len(x), self.hidden); weight = self.step.weight
  self.step(h): F.linear(h, weight)
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import orthogonal
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

torch.set_num_threads(1)
ASSETS, DAYS = 20, 24


def make_returns(n, seed=8):
    """Standardised returns of 20 assets over 24 days, and the volatility of the days that follow."""
    g = torch.Generator().manual_seed(seed)
    load = torch.randn(ASSETS, 3, generator=g) * 0.5
    vol = torch.zeros(n, DAYS + 5, 3)
    state = torch.randn(n, 3, generator=g) * 0.5
    for t in range(DAYS + 5):
        state = 0.92 * state + 0.25 * torch.randn(n, 3, generator=g)
        vol[:, t] = state
    factor = torch.exp(vol) * torch.randn(n, DAYS + 5, 3, generator=g)
    returns = factor @ load.T + 0.3 * torch.randn(n, DAYS + 5, ASSETS, generator=g)
    target = returns[:, DAYS:].square().mean(1).log()
    return TensorDataset(returns[:, :DAYS].contiguous(), target)


class VolatilityRNN(L.LightningModule):
    """A recurrent network with an orthogonal transition, so that old shocks neither vanish nor explode."""

    def __init__(self, hidden=64, inner=320):
        super().__init__()
        self.hidden = hidden
        self.read = nn.Sequential(nn.Linear(2 * ASSETS, inner), nn.GELU(), nn.Linear(inner, hidden))
        self.step = orthogonal(nn.Linear(hidden, hidden, bias=False))
        self.head = nn.Sequential(nn.Linear(hidden, inner), nn.GELU(), nn.Linear(inner, ASSETS))

    def forward(self, x):
        inputs = self.read(torch.cat([x, x.abs()], dim=-1)).unbind(1)
        h = x.new_zeros(len(x), self.hidden)
        for u in inputs:
            h = torch.tanh(self.step(h) + u)  # costs time
        return self.head(h)

    def training_step(self, batch, _):
        x, y = batch
        loss = F.huber_loss(self(x), y)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, _):
        x, y = batch
        self.log("val_loss", F.huber_loss(self(x), y), batch_size=len(y))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


def loader(data, size, shuffle):
    order = RandomSampler(data) if shuffle else range(len(data))
    return DataLoader(data, sampler=BatchSampler(order, size, drop_last=shuffle), batch_size=None)


def main():
    L.seed_everything(51)
    trainer = L.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        max_epochs=4,
        gradient_clip_val=1.0,
    )
    train = loader(make_returns(70 * 128), 128, True)
    trainer.fit(VolatilityRNN(), train, loader(make_returns(512, 9), 256, False))
    print({k: float(v) for k, v in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
