"""Trains a convolutional network that marks anomalous time steps in multichannel turbine sensor windows.
The exact AUROC, which keeps every score seen so far, is computed again in each training step over all scores of the
epoch so far, although only its value at the end of the epoch matters.
---
expect: [PD509, PD605]
fix:
  ? |2
            self.log("train_auroc", self.auroc.compute(), prog_bar=True)  # costs time
            return loss
  : |2
            return loss
  ? "        self.auroc.reset()"
  : |2
            self.log("train_auroc", self.auroc.compute(), prog_bar=True)
            self.auroc.reset()
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import BinaryAUROC

CHANNELS, LENGTH = 8, 192


def make_windows(count, seed=0):
    gen = torch.Generator().manual_seed(seed)
    time = torch.arange(LENGTH) / LENGTH
    freq = torch.empty(count, CHANNELS, 1).uniform_(2, 12, generator=gen)
    phase = torch.rand(count, CHANNELS, 1, generator=gen)
    x = torch.sin(6.2832 * (freq * time + phase)) + 0.3 * torch.randn(count, CHANNELS, LENGTH, generator=gen)
    start = torch.randint(0, LENGTH - 24, (count, 1), generator=gen)
    steps = torch.arange(LENGTH)
    faulty = (torch.rand(count, 1, generator=gen) < 0.5) & (steps >= start) & (steps < start + 24)
    gain = 1 + 0.8 * torch.rand(count, CHANNELS, 1, generator=gen) * faulty.unsqueeze(1)
    return x * gain, faulty.long()


class DilatedBlock(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.conv = nn.Conv1d(width, width, 5, padding=2 * dilation, dilation=dilation)
        self.mix = nn.Conv1d(width, width, 1)

    def forward(self, x):
        return x + self.mix(F.relu(self.conv(x)))


class AnomalyDetector(L.LightningModule):
    def __init__(self, width=32):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(CHANNELS, width, 5, padding=2),
            *[DilatedBlock(width, 2**i) for i in range(4)],
            nn.ReLU(),
            nn.Conv1d(width, 1, 1),
        )
        self.auroc = BinaryAUROC()

    def forward(self, x):
        return self.net(x).squeeze(1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        loss = F.binary_cross_entropy_with_logits(logits, y.float())
        self.auroc.update(logits.detach().sigmoid(), y)
        self.log("train_loss", loss)
        self.log("train_auroc", self.auroc.compute(), prog_bar=True)  # costs time
        return loss

    def on_train_epoch_end(self):
        self.auroc.reset()

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", F.binary_cross_entropy_with_logits(self(x), y.float()))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    L.seed_everything(0)
    train = DataLoader(TensorDataset(*make_windows(1920)), batch_size=32, shuffle=True, drop_last=True)
    val = DataLoader(TensorDataset(*make_windows(256, seed=1)), batch_size=64)
    trainer = L.Trainer(max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False)
    trainer.fit(AnomalyDetector(), train, val)
