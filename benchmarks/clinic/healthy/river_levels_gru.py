"""A GRU with attributes of the catchment predicts the discharge of rivers from 40 days of weather.
---
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

torch.set_num_threads(1)
DAYS, FORCINGS, ATTRIBUTES = 40, 5, 12


def make_catchments(n, seed):
    """A leaky store with snow; its constants follow from the attributes of the catchment."""
    g = torch.Generator().manual_seed(seed)
    mix = torch.randn(ATTRIBUTES, 3, generator=torch.Generator().manual_seed(0)) * 0.4
    static = torch.randn(n, ATTRIBUTES, generator=g)
    leak, melt, loss = torch.sigmoid(static @ mix).unbind(1)
    rain = torch.rand(n, DAYS, generator=g).pow(4) * 5
    warm = torch.randn(n, 1, generator=g) + 0.5 * torch.randn(n, DAYS, generator=g)
    noise = torch.randn(n, DAYS, FORCINGS - 2, generator=g)
    snow, store = torch.zeros(n), torch.zeros(n)
    for t in range(DAYS):
        cold = (warm[:, t] < 0).float()
        thaw = (1 - cold) * melt * snow
        snow = snow + cold * rain[:, t] - thaw
        store = store + (1 - cold) * rain[:, t] + thaw
        flow = (0.05 + 0.4 * leak) * store
        store = (store - flow) * (1 - 0.1 * loss)
    weather = torch.cat([rain[..., None], warm[..., None], noise], dim=2)
    return TensorDataset(weather, static, torch.log1p(flow))


def loader(data, size, shuffle):
    order = RandomSampler(data) if shuffle else range(len(data))
    return DataLoader(data, sampler=BatchSampler(order, size, drop_last=shuffle), batch_size=None)


class Discharge(L.LightningModule):
    """The attributes set the first state of the GRU and scale its last one."""

    def __init__(self, hidden=128):
        super().__init__()
        self.state = nn.Sequential(nn.Linear(ATTRIBUTES, 64), nn.ReLU(), nn.Linear(64, 2 * hidden))
        self.gru = nn.GRU(FORCINGS, hidden, batch_first=True)
        self.head = nn.Sequential(nn.Linear(hidden, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, weather, static):
        first, scale = self.state(static).chunk(2, dim=1)
        _, last = self.gru(weather, torch.tanh(first)[None].contiguous())
        return self.head(last[0] * torch.sigmoid(scale)).squeeze(-1)

    def training_step(self, batch, _):
        weather, static, flow = batch
        loss = F.mse_loss(self(weather, static), flow)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, _):
        weather, static, flow = batch
        self.log("val_loss", F.mse_loss(self(weather, static), flow), batch_size=len(flow))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3, fused=True)


def main():
    L.seed_everything(101)
    trainer = L.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        max_epochs=5,
    )
    train = loader(make_catchments(60 * 96, 1), 96, True)
    trainer.fit(Discharge(), train, loader(make_catchments(1024, 2), 512, False))
    print({k: float(v) for k, v in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
