"""A recurrent encoder and decoder with teacher forcing that continue the readings of a weather station by twelve
hours.
---
half: score
"""

import lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

PAST, AHEAD, SENSORS = 48, 12, 8


def station(windows, seed):
    """Sums of daily and slower waves with noise: the past, and the hours ahead with the last past hour before them."""
    g = torch.Generator().manual_seed(seed)
    hours = torch.arange(PAST + AHEAD) * 6.2832
    period = torch.tensor([24.0, 24.0, 12.0, 60.0, 24.0, 90.0, 36.0, 24.0])
    phase = torch.rand(windows, 1, SENSORS, generator=g) * 6.2832
    amplitude = torch.rand(windows, 1, SENSORS, generator=g) + 0.5
    readings = amplitude * (hours[:, None] / period + phase).sin()
    readings = readings + 0.1 * torch.randn(readings.shape, generator=g)
    return TensorDataset(readings[:, :PAST].contiguous(), readings[:, PAST - 1 :].contiguous())


class Nowcast(lightning.LightningModule):
    def __init__(self, width=128):
        super().__init__()
        self.encoder = nn.GRU(SENSORS, width, batch_first=True)
        self.decoder = nn.GRU(SENSORS, width, batch_first=True)
        self.head = nn.Linear(width, SENSORS)

    def forward(self, past, known):
        _, state = self.encoder(past)
        hidden, _ = self.decoder(known, state)
        return known + self.head(hidden)

    def training_step(self, batch, batch_idx):
        past, ahead = batch
        return F.smooth_l1_loss(self(past, ahead[:, :-1]), ahead[:, 1:])

    def validation_step(self, batch, batch_idx):
        """Without the teacher: each hour is fed back (a loop over twelve hours, on few windows)."""
        past, ahead = batch
        _, state = self.encoder(past)
        hour, hours = ahead[:, :1], []
        for _ in range(AHEAD):
            hidden, state = self.decoder(hour, state)
            hour = hour + self.head(hidden)
            hours.append(hour)
        self.log("val_mae", F.l1_loss(torch.cat(hours, 1), ahead[:, 1:]), batch_size=len(past))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3, fused=True)


def loader(dataset, batch_size, shuffle=False):
    order = RandomSampler(dataset) if shuffle else SequentialSampler(dataset)
    return DataLoader(dataset, sampler=BatchSampler(order, batch_size, drop_last=shuffle), batch_size=None)


if __name__ == "__main__":
    lightning.seed_everything(9, verbose=False)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Nowcast(), loader(station(4608, seed=1), 128, shuffle=True), loader(station(256, seed=2), 256))
