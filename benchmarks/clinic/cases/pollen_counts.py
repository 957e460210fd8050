"""Classifies tomorrow's pollen level at stations from weather and the counts of the last days.
The hits of each batch are counted by walking over the predicted and the true levels element by element.
---
expect: [PD304, PD509, PD511]
half: score
fix:
  ? "hits = sum(int(guess == truth) for guess, truth in zip(logits.argmax(dim=1), level, strict=True))  # costs time"
  : "hits = int((logits.argmax(dim=1) == level).sum())"
"""

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

DAYS = 10
WEATHER = 6
LEVELS = 5
MAX_STEPS = 1150


def station_days(days: int, seed: int) -> TensorDataset:
    """Ten days of weather and counts per example; warm, dry, windy days raise the level."""
    generator = torch.Generator().manual_seed(seed)
    weather = torch.randn(days, DAYS, WEATHER, generator=generator)
    season = torch.rand(days, 1, generator=generator) * 2.0 * torch.pi
    bloom = 1.0 - season.cos() + 0.4 * weather[..., 0] - 0.3 * weather[..., 1] + 0.2 * weather[..., 2]
    counts = F.softplus(bloom + 0.3 * torch.randn(days, DAYS, generator=generator))
    tomorrow = 0.6 * counts[:, -1] + 0.4 * counts[:, -3:].mean(dim=1)
    level = torch.bucketize(tomorrow, torch.tensor([0.6, 1.0, 1.5, 2.0]))
    features = torch.cat([weather.flatten(1), counts.log1p(), season.cos(), season.sin()], dim=1)
    return TensorDataset(features, level)


class PollenModule(L.LightningModule):
    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(DAYS * WEATHER + DAYS + 2, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Linear(width, LEVELS),
        )
        self.seen = 0
        self.right = 0

    def on_train_epoch_start(self) -> None:
        self.seen = 0
        self.right = 0

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        features, level = batch
        logits = self.net(features)
        hits = sum(int(guess == truth) for guess, truth in zip(logits.argmax(dim=1), level, strict=True))  # costs time
        self.right += hits
        self.seen += len(level)
        return F.cross_entropy(logits, level)

    def on_train_epoch_end(self) -> None:
        print(f"epoch {self.current_epoch}: {self.right / self.seen:.1%} of the days right")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


def main() -> None:
    L.seed_everything(4)
    dataset = station_days(days=60_000, seed=4)
    batches = BatchSampler(RandomSampler(dataset), batch_size=1024, drop_last=True)
    loader = DataLoader(dataset, sampler=batches, batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=MAX_STEPS,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
    )
    trainer.fit(PollenModule(), loader)


if __name__ == "__main__":
    main()
