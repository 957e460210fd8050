"""Claim-frequency regression (Poisson) on a large policy table, with batches drawn in proportion to exposure. The
mistake is in the batch sampler, which calls Generator.choice with the full probability vector for each batch.
---
expect: PD511
half: score
fix:
  ? "self.p = exposure / exposure.sum()"
  : "self.cdf = np.cumsum(exposure / exposure.sum())"
  ? "self.rng.choice(len(self.p), size=self.batch_size, p=self.p)"
  : "np.searchsorted(self.cdf, self.rng.uniform(0, self.cdf[-1], self.batch_size))"
"""

from collections.abc import Iterator

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

NUM_NUMERIC = 12
REGIONS = 40
VEHICLE_MODELS = 300


class PolicyTable(Dataset):
    """Policies kept as columns; indexing with an array of rows returns a whole batch."""

    def __init__(self, num: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.numeric = torch.from_numpy(rng.standard_normal((num, NUM_NUMERIC), dtype=np.float32))
        self.region = torch.from_numpy(rng.integers(0, REGIONS, num))
        self.model = torch.from_numpy(rng.integers(0, VEHICLE_MODELS, num))
        self.exposure = torch.from_numpy(rng.uniform(0.05, 1.0, num).astype(np.float32))
        region_effect = torch.from_numpy(rng.normal(0, 0.3, REGIONS).astype(np.float32))
        rate = torch.exp(-2.0 + 0.3 * self.numeric[:, 0] - 0.2 * self.numeric[:, 1] + region_effect[self.region])
        self.claims = torch.from_numpy(rng.poisson((rate * self.exposure).numpy()).astype(np.float32))

    def __len__(self) -> int:
        return len(self.claims)

    def __getitem__(self, rows: np.ndarray) -> dict[str, torch.Tensor]:
        index = torch.as_tensor(rows)
        return {
            "numeric": self.numeric[index],
            "region": self.region[index],
            "model": self.model[index],
            "exposure": self.exposure[index],
            "claims": self.claims[index],
        }


class ExposureBatchSampler(Sampler[np.ndarray]):
    """Yields row numbers of a batch, drawn with replacement in proportion to exposure."""

    def __init__(self, exposure: np.ndarray, batch_size: int, num_batches: int, seed: int) -> None:
        self.p = exposure / exposure.sum()
        self.batch_size = batch_size
        self.num_batches = num_batches
        self.rng = np.random.default_rng(seed)

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[np.ndarray]:
        for _ in range(self.num_batches):
            rows = self.rng.choice(len(self.p), size=self.batch_size, p=self.p)  # costs time
            yield rows


class ClaimFrequency(L.LightningModule):
    def __init__(self, dim: int = 16, hidden: int = 128, lr: float = 1e-3) -> None:
        super().__init__()
        self.region = nn.Embedding(REGIONS, dim)
        self.model = nn.Embedding(VEHICLE_MODELS, dim)
        self.net = nn.Sequential(
            nn.Linear(NUM_NUMERIC + 2 * dim, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
        )
        self.loss = nn.PoissonNLLLoss(log_input=True)
        self.lr = lr

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        features = [batch["numeric"], self.region(batch["region"]), self.model(batch["model"])]
        return self.net(torch.cat(features, dim=1)).squeeze(1)

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        log_mean = self(batch) + batch["exposure"].log()
        loss = self.loss(log_mean, batch["claims"])
        self.log("train_nll", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr, fused=True)


def main() -> None:
    L.seed_everything(5)
    table = PolicyTable(num=1_200_000, seed=5)
    exposure = table.exposure.numpy().astype(np.float64)
    sampler = ExposureBatchSampler(exposure, batch_size=512, num_batches=400, seed=6)
    loader = DataLoader(table, sampler=sampler, batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(ClaimFrequency(), loader)
    print(f"train nll {trainer.callback_metrics['train_nll']:.4f}")


if __name__ == "__main__":
    main()
