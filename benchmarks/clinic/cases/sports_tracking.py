"""A temporal convolution network recognizes actions in sports tracking data; the sampler that favors rare actions
draws each index with its own call of numpy.random.Generator.choice.
---
expect: PD511
fix:
  ? |2
            for _ in range(self.count):
                yield int(self.rng.choice(len(self.weights), p=self.weights))  # costs time
  : |2
            yield from self.rng.choice(len(self.weights), size=self.count, p=self.weights).tolist()
half: score
"""

import lightning
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, Sampler

PLAYERS, COORDINATES, FRAMES = 10, 2, 32
ACTIONS = 6


class TrackingWindows(Dataset):
    """Windows of FRAMES frames out of one long recording of the players' positions."""

    def __init__(self, frames, seed):
        generator = torch.Generator().manual_seed(seed)
        steps = torch.randn(frames, PLAYERS * COORDINATES, generator=generator)
        label_of_second = torch.multinomial(
            torch.tensor([0.6, 0.2, 0.1, 0.06, 0.03, 0.01]), frames // 25 + 1, replacement=True, generator=generator
        )
        self.labels = label_of_second.repeat_interleave(25)[:frames]
        drift = torch.randn(ACTIONS, PLAYERS * COORDINATES, generator=torch.Generator().manual_seed(0))
        self.speeds = steps + 0.5 * drift[self.labels]

    def __len__(self):
        return len(self.speeds) - FRAMES

    def __getitems__(self, indices):
        starts = torch.tensor(indices)
        window = starts[:, None] + torch.arange(FRAMES)
        return self.speeds[window].transpose(1, 2), self.labels[starts + FRAMES // 2]


class FavorRare(Sampler):
    """Draws windows with replacement, each action equally often."""

    def __init__(self, labels, count, seed):
        frequency = np.bincount(labels, minlength=ACTIONS)
        weights = 1.0 / frequency[labels]
        self.weights = weights / weights.sum()
        self.count = count
        self.rng = np.random.default_rng(seed)

    def __len__(self):
        return self.count

    def __iter__(self):
        for _ in range(self.count):
            yield int(self.rng.choice(len(self.weights), p=self.weights))  # costs time


class Residual(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.conv1 = nn.Conv1d(width, width, 3, padding=dilation, dilation=dilation)
        self.conv2 = nn.Conv1d(width, width, 1)

    def forward(self, x):
        return x + self.conv2(F.relu(self.conv1(x)))


class ActionNet(lightning.LightningModule):
    def __init__(self, width=112):
        super().__init__()
        self.stem = nn.Conv1d(PLAYERS * COORDINATES, width, 3, padding=1)
        self.body = nn.Sequential(*(Residual(width, 2**i) for i in range(4)))
        self.head = nn.Linear(width, ACTIONS)

    def forward(self, x):
        return self.head(self.body(self.stem(x)).mean(2))

    def training_step(self, batch, batch_idx):
        x, action = batch
        return F.cross_entropy(self(x), action)

    def validation_step(self, batch, batch_idx):
        x, action = batch
        self.log("val_loss", F.cross_entropy(self(x), action), batch_size=len(x))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


def as_is(batch):
    return batch


if __name__ == "__main__":
    lightning.seed_everything(3)
    data = TrackingWindows(60_000, 1)
    sampler = FavorRare(data.labels[FRAMES // 2 : FRAMES // 2 + len(data)].numpy(), 36 * 64, 7)
    train = DataLoader(data, batch_size=64, sampler=sampler, collate_fn=as_is)
    valid = DataLoader(TrackingWindows(2_000, 2), batch_size=250, collate_fn=as_is)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(ActionNet(), train, valid)
    print("val_loss", trainer.callback_metrics["val_loss"].item())
