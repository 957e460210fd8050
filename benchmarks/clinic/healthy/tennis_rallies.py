"""Predicts from the strokes of a tennis rally (place, speed, spin, player's position) who wins the point and how, with
a two-layer LSTM over rallies of equal length, cut to the last 24 strokes.
---
half: score
"""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STROKES = 24
INPUTS = 12
ENDINGS = 6


def play(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rallies as a noisy drift of pressure between two players; the ending depends on where it leads."""
    pressure = (0.5 * torch.randn(count, STROKES)).cumsum(1)
    risk = torch.rand(count, 1) + 0.1 * torch.randn(count, STROKES)
    view = torch.randn(2, INPUTS)
    rallies = pressure.unsqueeze(2) * view[0] + risk.unsqueeze(2) * view[1]
    rallies = rallies + 0.5 * torch.randn(count, STROKES, INPUTS)
    winner = (pressure[:, -6:].mean(1) > 0).long()
    kind = (risk.mean(1) * 3).long().clamp(0, 2)
    return rallies, winner * 3 + kind


class RallyReader(L.LightningModule):
    def __init__(self, hidden: int = 256):
        super().__init__()
        self.lstm = nn.LSTM(INPUTS, hidden, num_layers=2, batch_first=True)
        self.head = nn.Linear(hidden, ENDINGS)

    def forward(self, rallies: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(rallies)
        return self.head(states[:, -1])

    def training_step(self, batch, batch_idx):
        rallies, endings = batch
        loss = nn.functional.cross_entropy(self(rallies), endings)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


def main():
    L.seed_everything(31)
    loader = DataLoader(TensorDataset(*play(8192)), batch_size=128, shuffle=True, drop_last=True)
    trainer = L.Trainer(
        accelerator="cpu",
        precision="bf16-mixed",
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(RallyReader(), loader)
    print(trainer.callback_metrics["train_loss"].item())


if __name__ == "__main__":
    main()
