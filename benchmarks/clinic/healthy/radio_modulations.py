"""A 1-D network tells the modulation of a radio signal; the signals are simulated without end while it trains.
An iterable dataset makes whole batches at once, in the process of the training.
---
half: score
"""

import math

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset

SAMPLES = 256
SYMBOL = 8
BATCH = 48
STEPS = 240


def constellations() -> torch.Tensor:
    """Sixteen points each of BPSK, QPSK, 8-PSK and 16-QAM (points repeat where there are fewer), of unit power."""
    point = torch.arange(16)
    phase = [torch.polar(torch.ones(16), 2 * math.pi * (point % order) / order) for order in (2, 4, 8)]
    square = torch.complex((point % 4).float() - 1.5, (point // 4).float() - 1.5)
    square = square / square.abs().square().mean().sqrt()
    return torch.stack([*phase, square])


class Receptions(IterableDataset):
    """Batches of received signals, with random carrier offset, phase and noise, and their modulation."""

    def __init__(self, batch: int, seed: int):
        self.batch = batch
        self.seed = seed
        self.points = constellations()
        self.time = torch.arange(SAMPLES) / SAMPLES

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed)
        while True:
            kinds = torch.randint(len(self.points), (self.batch,), generator=generator)
            draws = torch.randint(16, (self.batch, SAMPLES // SYMBOL), generator=generator)
            symbols = self.points[kinds[:, None], draws].repeat_interleave(SYMBOL, dim=1)
            offset, start, level = torch.rand(3, self.batch, 1, generator=generator)
            turn = 2 * math.pi * ((offset - 0.5) * self.time + start)
            signal = torch.view_as_real(symbols * torch.polar(torch.ones_like(turn), turn))
            noise = torch.randn(signal.shape, generator=generator)
            yield (signal + (0.02 + 0.1 * level)[..., None] * noise).transpose(1, 2).contiguous(), kinds


class ModulationNet(L.LightningModule):
    def __init__(self, width: int = 48, lr: float = 2e-3):
        super().__init__()
        self.lr = lr
        self.trunk = nn.Sequential(
            nn.Conv1d(2, width, SYMBOL, stride=SYMBOL // 2),
            nn.GELU(),
            nn.Conv1d(width, 2 * width, 5, padding=2),
            nn.GELU(),
            nn.Conv1d(2 * width, 2 * width, 5, padding=2),
            nn.GELU(),
            nn.Conv1d(2 * width, 2 * width, 5, padding=2),
            nn.GELU(),
        )
        self.head = nn.Linear(4 * width, 4)

    def forward(self, signals: torch.Tensor) -> torch.Tensor:
        features = self.trunk(signals)
        return self.head(torch.cat([features.mean(dim=2), features.amax(dim=2)], dim=1))

    def training_step(self, batch, batch_idx):
        signals, kinds = batch
        return F.cross_entropy(self(signals), kinds)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr, fused=True)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=self.lr, total_steps=STEPS)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main() -> None:
    L.seed_everything(23)
    loader = DataLoader(Receptions(BATCH, seed=23), batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        max_steps=STEPS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(ModulationNet(), loader)


if __name__ == "__main__":
    main()
