"""Trains a dilated convolutional network that predicts ATAC-seq coverage profiles from randomly drawn genome windows.
The sampler draws each batch of loci with the legacy np.random.choice(..., replace=False), which permutes all loci.
---
expect: [PD101, PD107, PD511]
half: tune
fix:
  ? "self.batches_per_epoch = batches_per_epoch"
  : "self.batches_per_epoch, self.rng = batches_per_epoch, np.random.default_rng(11)"
  ? "np.random.choice(self.num_loci, self.batch_size, replace=False)  # costs time"
  : "self.rng.choice(self.num_loci, self.batch_size, replace=False)"
"""

from collections.abc import Iterator

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler

WINDOW = 512
BIN = 16
BATCH_SIZE = 48


class GenomeWindows(Dataset[tuple[Tensor, Tensor]]):
    """Fixed-width windows around candidate loci, with the binned Tn5 insertion counts as targets."""

    def __init__(self, genome_length: int, stride: int) -> None:
        generator = torch.Generator().manual_seed(3)
        self.bases = torch.randint(0, 4, (genome_length,), generator=generator)
        gc = ((self.bases == 1) | (self.bases == 2)).float()
        smooth = F.avg_pool1d(gc[None, None], 33, stride=1, padding=16)[0, 0]
        self.rate = torch.exp(6.0 * (smooth - 0.5))
        self.starts = torch.arange(0, genome_length - WINDOW, stride)
        self.offsets = torch.arange(WINDOW)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, loci: np.ndarray) -> tuple[Tensor, Tensor]:
        positions = self.starts[torch.from_numpy(loci)][:, None] + self.offsets
        sequence = F.one_hot(self.bases[positions], 4).transpose(1, 2).float()
        signal = self.rate[positions].view(len(loci), WINDOW // BIN, BIN).sum(dim=-1)
        return sequence, signal


class DistinctLociSampler(Sampler[np.ndarray]):
    """Yields batches of distinct loci; loci may come back in another batch of the same epoch."""

    def __init__(self, num_loci: int, batch_size: int, batches_per_epoch: int) -> None:
        self.num_loci = num_loci
        self.batch_size = batch_size
        self.batches_per_epoch = batches_per_epoch

    def __len__(self) -> int:
        return self.batches_per_epoch

    def __iter__(self) -> Iterator[np.ndarray]:
        for _ in range(self.batches_per_epoch):
            yield np.random.choice(self.num_loci, self.batch_size, replace=False)  # costs time


class DilatedBlock(nn.Module):
    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, 3, padding=dilation, dilation=dilation)
        self.mix = nn.Conv1d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mix(F.relu(self.conv(x)))


class ProfileModel(L.LightningModule):
    def __init__(self, channels: int = 56, depth: int = 4, lr: float = 1e-3) -> None:
        super().__init__()
        self.lr = lr
        self.stem = nn.Conv1d(4, channels, 16, stride=4, padding=6)
        self.trunk = nn.Sequential(*(DilatedBlock(channels, 2**i) for i in range(depth)))
        self.profile = nn.Conv1d(channels, 1, 8, stride=4, padding=2)
        self.total = nn.Linear(channels, 1)

    def forward(self, sequence: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.trunk(F.relu(self.stem(sequence)))
        return self.profile(hidden).squeeze(1), self.total(hidden.mean(dim=-1)).squeeze(-1)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        sequence, signal = batch
        logits, log_total = self(sequence)
        depth = signal.sum(dim=-1)
        profile_loss = -(signal / depth[:, None] * logits.log_softmax(dim=-1)).sum(dim=-1).mean()
        count_loss = F.mse_loss(log_total, depth.log1p())
        loss = profile_loss + 0.1 * count_loss
        self.log("train/profile_loss", profile_loss)
        self.log("train/count_loss", count_loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=1e-4, fused=True)


def main() -> None:
    L.seed_everything(11)
    windows = GenomeWindows(genome_length=6_000_000, stride=4)
    sampler = DistinctLociSampler(len(windows), BATCH_SIZE, batches_per_epoch=75)
    loader = DataLoader(windows, sampler=sampler, batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(ProfileModel(), loader)


if __name__ == "__main__":
    main()
