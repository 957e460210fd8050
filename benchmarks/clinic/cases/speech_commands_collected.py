"""A convolutional network with attention pooling that recognizes spoken commands, with a callback that collects
garbage during the epoch.
---
expect: [PD508, PD504]
fix:
  "callbacks=[ReleaseMemory()],": "callbacks=[],"
half: score
"""

import gc

import lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

FRAMES, MELS, COMMANDS = 98, 40, 12


def utterances(count, seed):
    """Log-mel spectrograms of one second: two formants that move as the command wants, at any time, in noise."""
    g = torch.Generator().manual_seed(seed)
    command = torch.randint(0, COMMANDS, (count,), generator=g)
    start = torch.randint(0, 40, (count, 1), generator=g)
    time = (torch.arange(FRAMES) - start) / 50
    low = 6 + (command % 4)[:, None] * 3 + 6 * time
    high = 22 + (command // 4)[:, None] * 5 - 8 * time
    voiced = ((time >= 0) & (time <= 1)).float()[:, :, None]
    mel = torch.arange(MELS).float()
    spectrum = torch.randn(count, FRAMES, MELS, generator=g) * 0.5
    for formant in (low, high):
        spectrum += 2 * voiced * torch.exp(-((mel - formant[:, :, None]) ** 2) / 6)
    return TensorDataset(spectrum, command)


class ReleaseMemory(lightning.Callback):
    """Keeps the memory of long runs flat."""

    def __init__(self, every=5):
        self.every = every

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if (batch_idx + 1) % self.every == 0:
            gc.collect()  # costs time


class Commands(lightning.LightningModule):
    def __init__(self, width=96):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv1d(MELS, width, 5, padding=2),
            nn.ReLU(),
            nn.Conv1d(width, width, 5, stride=2, padding=2),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Conv1d(width, width, 5, stride=2, padding=2),
            nn.ReLU(),
        )
        self.attention = nn.Linear(width, 1)
        self.head = nn.Linear(width, COMMANDS)

    def forward(self, spectrum):
        h = self.encoder(spectrum.transpose(1, 2)).transpose(1, 2)
        weight = self.attention(h).softmax(1)
        return self.head((weight * h).sum(1))

    def training_step(self, batch, batch_idx):
        spectrum, command = batch
        return F.cross_entropy(self(spectrum), command)

    def validation_step(self, batch, batch_idx):
        spectrum, command = batch
        logits = self(spectrum)
        self.log("val_error", (logits.argmax(1) != command).float().mean(), batch_size=len(command))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    lightning.seed_everything(21, verbose=False)
    data, held_out = utterances(2560, seed=1), utterances(640, seed=2)
    train = DataLoader(data, sampler=BatchSampler(RandomSampler(data), 64, drop_last=True), batch_size=None)
    valid = DataLoader(
        held_out, sampler=BatchSampler(SequentialSampler(held_out), 128, drop_last=False), batch_size=None
    )
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        callbacks=[ReleaseMemory()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Commands(), train, valid)
