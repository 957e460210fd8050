"""Learns an embedding of opera voices in which recordings of one singer lie close (batch-hard triplet loss).
The squared distances of all pairs are made by broadcasting the difference of each pair of embeddings.
---
expect: PD326
half: score
fix:
  ? "gaps = (voices.unsqueeze(1) - voices.unsqueeze(0)).pow(2).sum(dim=2)  # costs time"
  : "gaps = 2.0 - 2.0 * voices @ voices.T"
"""

from collections.abc import Iterator

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Sampler, TensorDataset

SINGERS = 80
TAKES = 40
BANDS = 64
FRAMES = 20
PER_BATCH = 20
TAKES_PER_SINGER = 8
MAX_STEPS = 540


class SingerBatches(Sampler[torch.Tensor]):
    """Batches with a fixed number of takes of each of some singers."""

    def __init__(self, batches: int, seed: int) -> None:
        self.batches = batches
        self.generator = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(self.batches):
            singers = torch.randperm(SINGERS, generator=self.generator)[:PER_BATCH]
            takes = torch.randint(0, TAKES, (PER_BATCH, TAKES_PER_SINGER), generator=self.generator)
            yield (singers.unsqueeze(1) * TAKES + takes).flatten()


def recordings(seed: int) -> TensorDataset:
    """Mel spectra of takes: a color of voice per singer, an aria per take, and noise."""
    generator = torch.Generator().manual_seed(seed)
    color = torch.randn(SINGERS, 1, 1, BANDS, generator=generator)
    aria = torch.randn(1, TAKES, FRAMES, BANDS, generator=generator)
    noise = torch.randn(SINGERS, TAKES, FRAMES, BANDS, generator=generator)
    spectra = (color + aria + noise).view(SINGERS * TAKES, FRAMES * BANDS)
    return TensorDataset(spectra, torch.arange(SINGERS).repeat_interleave(TAKES))


class VoiceModule(L.LightningModule):
    def __init__(self, width: int = 64, margin: float = 0.3) -> None:
        super().__init__()
        self.margin = margin
        self.encoder = nn.Sequential(
            nn.Linear(FRAMES * BANDS, 512),
            nn.GELU(),
            nn.Linear(512, 512),
            nn.GELU(),
            nn.Linear(512, width),
        )

    def triplet_loss(self, voices: torch.Tensor, singers: torch.Tensor) -> torch.Tensor:
        gaps = (voices.unsqueeze(1) - voices.unsqueeze(0)).pow(2).sum(dim=2)  # costs time
        same = singers.unsqueeze(1) == singers.unsqueeze(0)
        farthest_own = gaps.masked_fill(~same, 0.0).amax(dim=1)
        nearest_other = gaps.masked_fill(same, 4.0).amin(dim=1)
        return F.relu(farthest_own - nearest_other + self.margin).mean()

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        spectra, singers = batch
        voices = F.normalize(self.encoder(spectra), dim=1)
        return self.triplet_loss(voices, singers)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=5e-4, fused=True)


def main() -> None:
    L.seed_everything(1853)
    loader = DataLoader(recordings(seed=1853), sampler=SingerBatches(batches=60, seed=9), batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=MAX_STEPS,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
    )
    trainer.fit(VoiceModule(), loader)


if __name__ == "__main__":
    main()
