"""Trains a 1-D convolutional classifier of hand gestures from surface EMG of a forearm prosthesis; the augmentation in
on_after_batch_transfer treats the windows of a batch one after the other in a Python loop.
---
expect: [PD504, PD511, PD337]
fix:
  ? |2-
            windows = []
            for i in range(len(emg)):  # costs time
                w = torch.roll(emg[i], int(turn[i]), dims=0)  # costs time
                w = torch.roll(w, int(shift[i]), dims=1)  # costs time
                w = w * gain[i][:, None] + drift[i][:, None] * ramp  # costs time
                windows.append(torch.where(keep[i][:, None], w, 0.0))  # costs time
            return torch.stack(windows), gesture
  : |2-
            channel = (torch.arange(CHANNELS) - turn[:, None]) % CHANNELS
            sample = (torch.arange(LENGTH) - shift[:, None]) % LENGTH
            w = emg[torch.arange(len(emg))[:, None, None], channel[:, :, None], sample[:, None, :]]
            w = w * gain[:, :, None] + drift[:, :, None] * ramp
            return torch.where(keep[:, :, None], w, 0.0), gesture
half: tune
"""

import lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

CHANNELS, LENGTH, GESTURES = 8, 48, 18


class EmgWindows(Dataset):
    def __init__(self, count: int, seed: int):
        gen = torch.Generator().manual_seed(seed)
        self.gesture = torch.randint(GESTURES, (count,), generator=gen)
        pattern = torch.rand(GESTURES, CHANNELS, 1, generator=torch.Generator().manual_seed(0)) + 0.2
        self.emg = torch.randn(count, CHANNELS, LENGTH, generator=gen) * pattern[self.gesture]

    def __len__(self):
        return len(self.gesture)

    def __getitems__(self, indices):
        index = torch.as_tensor(indices)
        return self.emg[index], self.gesture[index]


def as_is(batch):
    return batch


class GestureNet(lightning.LightningModule):
    def __init__(self, width: int = 48):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(CHANNELS, width, 5, padding=2),
            nn.ReLU(),
            nn.Conv1d(width, width, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv1d(width, 2 * width, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        self.head = nn.Sequential(
            nn.Flatten(), nn.Linear(2 * width * LENGTH // 4, 128), nn.ReLU(), nn.Linear(128, GESTURES)
        )

    def on_after_batch_transfer(self, batch, dataloader_idx):
        emg, gesture = batch
        if not self.trainer.training:
            return batch
        count = len(emg)
        turn = torch.randint(-1, 2, (count,))  # the bracelet sits a little rotated
        shift = torch.randint(-8, 9, (count,))
        gain = 1 + 0.1 * torch.randn(count, CHANNELS)
        drift = 0.05 * torch.randn(count, CHANNELS)
        keep = torch.rand(count, CHANNELS) > 0.05  # loose electrodes
        ramp = torch.linspace(-1, 1, LENGTH)
        windows = []
        for i in range(len(emg)):  # costs time
            w = torch.roll(emg[i], int(turn[i]), dims=0)  # costs time
            w = torch.roll(w, int(shift[i]), dims=1)  # costs time
            w = w * gain[i][:, None] + drift[i][:, None] * ramp  # costs time
            windows.append(torch.where(keep[i][:, None], w, 0.0))  # costs time
        return torch.stack(windows), gesture

    def forward(self, emg):
        return self.head(self.features(emg))

    def training_step(self, batch, batch_idx):
        emg, gesture = batch
        return F.cross_entropy(self(emg), gesture)

    def validation_step(self, batch, batch_idx):
        emg, gesture = batch
        self.log("val_accuracy", (self(emg).argmax(1) == gesture).float().mean(), batch_size=len(gesture))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, weight_decay=0.01, fused=True)


if __name__ == "__main__":
    lightning.seed_everything(11, verbose=False)
    train = DataLoader(EmgWindows(256 * 60, seed=1), batch_size=256, shuffle=True, collate_fn=as_is)
    valid = DataLoader(EmgWindows(1024, seed=2), batch_size=512, collate_fn=as_is)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(GestureNet(), train, valid)
