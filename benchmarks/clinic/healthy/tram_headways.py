"""Reconstructs a day of headways of tram lines with a variational autoencoder; rows come from a memory-mapped file,
a whole batch at a time.
---
half: score
"""

import tempfile
from pathlib import Path

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

MINUTES = 288
MAX_STEPS = 560


def store_headways(path: Path, days: int, seed: int) -> None:
    """Headways in five-minute steps: rush hours are dense, some days have a disruption."""
    rng = np.random.default_rng(seed)
    time = np.linspace(0.0, 24.0, MINUTES, dtype=np.float32)
    rush = np.exp(-((time - 8.0) ** 2) / 2.0) + np.exp(-((time - 17.5) ** 2) / 3.0)
    base = rng.uniform(6.0, 14.0, size=(days, 1)).astype(np.float32)
    start = rng.uniform(5.0, 22.0, size=(days, 1)).astype(np.float32)
    disrupted = (rng.random((days, 1)) < 0.3) & (time > start) & (time < start + 1.5)
    headways = base * (1.0 - 0.5 * rush) + 9.0 * disrupted
    np.save(path, (headways + rng.normal(0.0, 0.8, size=headways.shape)).astype(np.float32))


class HeadwayDays(Dataset):
    def __init__(self, path: Path) -> None:
        self.days = np.load(path, mmap_mode="r")

    def __len__(self) -> int:
        return len(self.days)

    def __getitem__(self, rows: list[int]) -> torch.Tensor:
        return torch.from_numpy(self.days[rows])


class HeadwayAutoencoder(L.LightningModule):
    def __init__(self, hidden: int = 384, latent: int = 16, weight: float = 0.1) -> None:
        super().__init__()
        self.weight = weight
        self.encoder = nn.Sequential(
            nn.Linear(MINUTES, hidden),
            nn.SiLU(),
            nn.Linear(hidden, hidden),
            nn.SiLU(),
            nn.Linear(hidden, 2 * latent),
        )
        self.decoder = nn.Sequential(
            nn.Linear(latent, hidden),
            nn.SiLU(),
            nn.Linear(hidden, hidden),
            nn.SiLU(),
            nn.Linear(hidden, MINUTES),
        )

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        scaled = (batch - 10.0) / 4.0
        mean, log_variance = self.encoder(scaled).chunk(2, dim=1)
        code = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1.0 - log_variance).sum(dim=1).mean()
        return F.mse_loss(self.decoder(code), scaled) + self.weight * divergence / MINUTES

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


def main() -> None:
    L.seed_everything(15)
    path = Path(tempfile.mkdtemp(prefix="headways_")) / "days.npy"
    store_headways(path, days=20_000, seed=15)
    dataset = HeadwayDays(path)
    batches = BatchSampler(RandomSampler(dataset), batch_size=512, drop_last=True)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=MAX_STEPS,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
    )
    trainer.fit(HeadwayAutoencoder(), DataLoader(dataset, sampler=batches, batch_size=None))


if __name__ == "__main__":
    main()
