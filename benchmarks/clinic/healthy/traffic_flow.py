"""A graph convolution network forecasts road sensors, with manual optimization and gradients summed over four batches.
---
half: score
"""

import lightning
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

SENSORS = 96
PAST, FUTURE = 12, 3


def make_traffic(hours, seed):
    """Speeds on a random road graph: daily rhythm, and jams that spread to neighbors."""
    g = torch.Generator().manual_seed(seed)
    place = torch.rand(SENSORS, 2, generator=torch.Generator().manual_seed(0))
    adjacency = (torch.cdist(place, place) < 0.18).float()
    spread = adjacency / adjacency.sum(1, keepdim=True)
    jam, speeds = torch.zeros(SENSORS), []
    for hour in range(hours):
        fresh = (torch.rand(SENSORS, generator=g) < 0.03).float()
        jam = 0.6 * jam + 0.3 * spread @ jam + fresh
        rhythm = torch.sin(torch.tensor(2 * torch.pi * hour / 24))
        speeds.append(rhythm - jam + 0.1 * torch.randn(SENSORS, generator=g))
    return torch.stack(speeds), adjacency


class Windows(Dataset):
    """Indexed with the list of start hours of a batch."""

    def __init__(self, speeds):
        self.windows = speeds.unfold(0, PAST + FUTURE, 1)  # a view: (starts, sensors, hours)

    def __len__(self):
        return len(self.windows)

    def __getitem__(self, starts):
        window = self.windows[starts]
        return window[..., :PAST], window[..., PAST:]


class FlowModel(lightning.LightningModule):
    def __init__(self, adjacency, width=64, depth=3, accumulate=4):
        super().__init__()
        self.automatic_optimization = False
        self.accumulate = accumulate
        scale = adjacency.sum(1).rsqrt()
        self.register_buffer("mixing", scale[:, None] * adjacency * scale)
        self.start = nn.Linear(PAST, width)
        self.layers = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(depth))
        self.end = nn.Linear(width, FUTURE)

    def forward(self, past):
        x = self.start(past)
        for layer in self.layers:
            x = x + F.relu(layer(torch.cat([x, self.mixing @ x], dim=-1)))
        return self.end(x)

    def training_step(self, batch, batch_idx):
        past, future = batch
        optimizer = self.optimizers()
        self.manual_backward(F.l1_loss(self(past), future) / self.accumulate)
        if (batch_idx + 1) % self.accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()

    def validation_step(self, batch, batch_idx):
        past, future = batch
        self.log("val_mae", F.l1_loss(self(past), future), batch_size=len(past))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3, fused=True)


def main():
    lightning.seed_everything(23)
    speeds, adjacency = make_traffic(7_200, seed=1)
    train, val = Windows(speeds[:6_414]), Windows(speeds[6_414:])
    model = FlowModel(adjacency)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        model,
        DataLoader(train, sampler=BatchSampler(RandomSampler(train), 32, drop_last=True), batch_size=None),
        DataLoader(val, sampler=BatchSampler(range(len(val)), 64, drop_last=False), batch_size=None),
    )
    print(f"validation error {trainer.callback_metrics['val_mae']:.4f}")


if __name__ == "__main__":
    main()
