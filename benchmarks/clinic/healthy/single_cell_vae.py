"""Trains a variational autoencoder with a negative binomial likelihood on streamed single-cell count matrices.
---
half: score
"""

from collections.abc import Iterator

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.utils.data import DataLoader, IterableDataset

GENES = 1600
CELL_TYPES = 8
BATCH_SIZE = 128


class CountStream(IterableDataset[Tensor]):
    """Walks over shards of sparse counts in random order, and makes one batch of cells at a time dense."""

    def __init__(self, shards: int, batches_per_shard: int) -> None:
        generator = torch.Generator().manual_seed(31)
        profiles = torch.randn(CELL_TYPES, GENES, generator=generator).mul(1.2).exp()
        self.shards: list[list[Tensor]] = []
        for _ in range(shards):
            batches = []
            for _ in range(batches_per_shard):
                cell_type = torch.randint(0, CELL_TYPES, (BATCH_SIZE,), generator=generator)
                counts = torch.poisson(0.3 * profiles[cell_type], generator=generator)
                batches.append(counts.to_sparse())
            self.shards.append(batches)

    def __iter__(self) -> Iterator[Tensor]:
        for shard in torch.randperm(len(self.shards)).tolist():
            for counts in self.shards[shard]:
                yield counts.to_dense()


class CountVAE(L.LightningModule):
    def __init__(self, width: int = 512, latent: int = 16, lr: float = 1e-3) -> None:
        super().__init__()
        self.lr = lr
        self.encoder = nn.Sequential(nn.Linear(GENES, width), nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, width))
        self.posterior = nn.Linear(width, 2 * latent)
        self.decoder = nn.Sequential(nn.Linear(latent, width), nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, GENES))
        self.log_dispersion = nn.Parameter(torch.zeros(GENES))

    def negative_binomial(self, counts: Tensor, log_rate: Tensor) -> Tensor:
        """Log-likelihood per cell, up to a constant of the counts."""
        dispersion = self.log_dispersion.exp()
        log_sum = torch.logaddexp(log_rate, self.log_dispersion)
        per_gene = dispersion * (self.log_dispersion - log_sum) + counts * (log_rate - log_sum)
        per_gene = per_gene + torch.lgamma(counts + dispersion) - torch.lgamma(dispersion)
        return per_gene.sum(dim=-1)

    def training_step(self, counts: Tensor, batch_idx: int) -> Tensor:
        depth = counts.sum(dim=1, keepdim=True).clamp_min(1.0)
        hidden = F.relu(self.encoder(counts.log1p()))
        location, log_scale = self.posterior(hidden).chunk(2, dim=-1)
        posterior = Normal(location, log_scale.clamp(-6, 3).exp(), validate_args=False)
        prior = Normal(torch.zeros_like(location), torch.ones_like(location), validate_args=False)
        log_rate = self.decoder(posterior.rsample()).log_softmax(dim=-1) + depth.log()
        reconstruction = -self.negative_binomial(counts, log_rate).mean()
        divergence = kl_divergence(posterior, prior).sum(dim=-1).mean()
        weight = min(1.0, (self.global_step + 1) / 200)
        loss = reconstruction + weight * divergence
        self.log_dict({"train/reconstruction": reconstruction, "train/kl": divergence}, batch_size=BATCH_SIZE)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.lr, fused=True)


def main() -> None:
    L.seed_everything(31)
    loader = DataLoader(CountStream(shards=8, batches_per_shard=25), batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        gradient_clip_val=50.0,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(CountVAE(), loader)


if __name__ == "__main__":
    main()
