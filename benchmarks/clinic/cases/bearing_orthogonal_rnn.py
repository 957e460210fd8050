"""Trains a recurrent network with an orthogonal transition matrix to classify bearing faults from vibration sensors.
The parametrized transition weight is recomputed (a matrix exponential) at every time step.
---
expect: PD328
half: score
fix:
  ? "drive = self.drive(features)"
  : "drive, weight = self.drive(features), self.transition.weight"
  ? "self.transition(state))  # costs time"
  : "state @ weight.T)"
"""

import math

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

CHANNELS = 3
SAMPLES = 1024
FAULTS = 6


class VibrationWindows(Dataset[tuple[Tensor, Tensor]]):
    """Windows of a three-axis accelerometer, with one fault frequency per class."""

    def __init__(self, size: int) -> None:
        generator = torch.Generator().manual_seed(5)
        self.labels = torch.randint(0, FAULTS, (size,), generator=generator)
        time = torch.linspace(0.0, 1.0, SAMPLES)
        frequency = 20.0 + 13.0 * self.labels.float()
        phase = torch.rand(size, CHANNELS, 1, generator=generator) * 2 * math.pi
        carrier = torch.sin(2 * math.pi * frequency[:, None, None] * time + phase)
        self.signals = carrier + 0.8 * torch.randn(size, CHANNELS, SAMPLES, generator=generator)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: list[int]) -> tuple[Tensor, Tensor]:
        rows = torch.tensor(index)
        return self.signals[rows], self.labels[rows]


class OrthogonalRNN(nn.Module):
    """Vanilla recurrence whose hidden-to-hidden matrix stays on the orthogonal group."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.drive = nn.Linear(inputs, hidden)
        self.transition = parametrizations.orthogonal(nn.Linear(hidden, hidden, bias=False))

    def forward(self, features: Tensor) -> Tensor:
        drive = self.drive(features)
        state = drive.new_zeros(drive.size(1), self.hidden)
        for step in range(drive.size(0)):
            state = torch.tanh(drive[step] + self.transition(state))  # costs time
        return state


class FaultClassifier(L.LightningModule):
    def __init__(self, width: int = 64, hidden: int = 96, lr: float = 1e-3) -> None:
        super().__init__()
        self.lr = lr
        self.encoder = nn.Sequential(
            nn.Conv1d(CHANNELS, width, 16, stride=8, padding=4),
            nn.GELU(),
            nn.Conv1d(width, width, 5, padding=2),
            nn.GELU(),
            nn.Conv1d(width, width, 4, stride=4),
            nn.GELU(),
        )
        self.rnn = OrthogonalRNN(width, hidden)
        self.head = nn.Linear(hidden, FAULTS)

    def forward(self, signals: Tensor) -> Tensor:
        features = self.encoder(signals).permute(2, 0, 1).contiguous()
        return self.head(self.rnn(features))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        signals, labels = batch
        logits = self(signals)
        loss = F.cross_entropy(logits, labels)
        self.log("train/loss", loss)
        self.log("train/accuracy", (logits.detach().argmax(dim=-1) == labels).float().mean())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.lr, fused=True)


def main() -> None:
    L.seed_everything(2)
    windows = VibrationWindows(size=64 * 75)
    sampler = BatchSampler(RandomSampler(windows), batch_size=64, drop_last=True)
    loader = DataLoader(windows, sampler=sampler, batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        gradient_clip_val=1.0,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(FaultClassifier(), loader)


if __name__ == "__main__":
    main()
