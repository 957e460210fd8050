"""Predicts the next leg of migrating storks from their GPS tracks of the last days with a GRU. Windows are views of
one tensor and gathered by batch, the tracks are turned at random on the batch, and an average of the weights is
validated.
---
half: score
"""

import math

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler

FIXES_PER_DAY = 8
HISTORY = 5 * FIXES_PER_DAY
FEATURES = 4  # legs east and north (100 km), temperature, tail wind


def tag_storks(birds=80, days=150, seed=0):
    """Legs between GPS fixes and weather of each bird: flights along a slowly turning course by day, rest by night."""
    rng = np.random.default_rng(seed)
    fixes = days * FIXES_PER_DAY
    hour = np.arange(fixes) % FIXES_PER_DAY
    flying = (hour >= 2) & (hour <= 5)
    wind = np.cumsum(rng.normal(0, 0.2, (birds, fixes)), 1)
    wind -= wind.mean(1, keepdims=True)
    course = np.cumsum(rng.normal(0, 0.08, (birds, fixes)), 1)
    speed = flying * np.exp(rng.normal(-0.5, 0.2, (birds, fixes)) + 0.1 * np.tanh(wind))
    temperature = np.cos(2 * np.pi * hour / FIXES_PER_DAY) + rng.normal(0, 0.2, (birds, fixes))
    legs = np.stack([speed * np.cos(course), speed * np.sin(course), temperature, np.tanh(wind)], -1)
    return torch.from_numpy(legs.astype(np.float32))


class TrackWindows(Dataset):
    """History and next leg; a list of indices gives a batch."""

    def __init__(self, tracks):
        self.windows = tracks.unfold(1, HISTORY + 1, 1)
        self.starts = self.windows.shape[1]

    def __len__(self):
        return self.windows.shape[0] * self.starts

    def __getitem__(self, indices):
        indices = torch.as_tensor(indices)
        windows = self.windows[indices // self.starts, indices % self.starts].transpose(1, 2)
        return windows[:, :HISTORY], windows[:, HISTORY, :2]


class LegPredictor(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.recurrence = nn.GRU(FEATURES, width, batch_first=True)
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, 2))

    def forward(self, history):
        _, state = self.recurrence(history)
        return self.head(state[-1])


class MigrationModel(L.LightningModule):
    def __init__(self, width=80, learning_rate=2e-3, average_decay=0.99):
        super().__init__()
        self.save_hyperparameters()
        self.predictor = LegPredictor(width)
        self.average = AveragedModel(self.predictor, multi_avg_fn=get_ema_multi_avg_fn(average_decay))

    def on_after_batch_transfer(self, batch, dataloader_idx):
        if not self.trainer.training:
            return batch
        history, leg = batch
        angle = torch.rand(len(leg), device=leg.device) * (2 * math.pi)
        cos, sin = torch.cos(angle), torch.sin(angle)
        turn = torch.stack([cos, sin, -sin, cos], 1).view(-1, 2, 2)
        turned = torch.cat([history[..., :2] @ turn, history[..., 2:]], -1)
        return turned, (leg[:, None] @ turn).squeeze(1)

    def training_step(self, batch, batch_idx):
        history, leg = batch
        loss = F.smooth_l1_loss(self.predictor(history), leg, beta=0.1)
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(leg))
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.average.update_parameters(self.predictor)

    def validation_step(self, batch, batch_idx):
        history, leg = batch
        distance = (self.average(history) - leg).norm(dim=-1).mean()
        self.log("val_error", 100 * distance, batch_size=len(leg))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.predictor.parameters(), lr=self.hparams.learning_rate, fused=True)
        steps = self.trainer.estimated_stepping_batches
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.hparams.learning_rate, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def batches(windows, sampler, size):
    return DataLoader(windows, sampler=BatchSampler(sampler, size, drop_last=False), batch_size=None)


def main():
    L.seed_everything(19)
    tracks = tag_storks()
    train, val = TrackWindows(tracks[:72]), TrackWindows(tracks[72:])
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(MigrationModel(), batches(train, RandomSampler(train), 128), batches(val, SequentialSampler(val), 512))
    metrics = trainer.callback_metrics
    print(f"train loss {metrics['train_loss']:.4f}, validation error {metrics['val_error']:.1f} km")


if __name__ == "__main__":
    main()
