"""Crop-yield regression with a penalty for yields that fall with more nitrogen. The mistake is in the penalty, which
differentiates the predictions of the probe fields one at a time.
---
expect: PD341
half: tune
fix:
  ? "[grad(p, probes, create_graph=True)[0][i, NITROGEN] for i, p in enumerate(pred)]"
  : "grad(pred.sum(), probes, create_graph=True)[0][:, NITROGEN]"
  ? "torch.stack(slopes)"
  : "slopes"
"""

from collections.abc import Iterator

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import grad
from torch.utils.data import DataLoader, Dataset, Sampler

NUM_FEATURES = 24
NITROGEN = 0


class FieldTable(Dataset):
    """Soil, weather, and treatment features per field; rows are fetched a batch at a time."""

    def __init__(self, num: int, seed: int) -> None:
        gen = torch.Generator().manual_seed(seed)
        self.features = torch.randn(num, NUM_FEATURES, generator=gen)
        nitrogen, rain, ph = self.features[:, 0], self.features[:, 1], self.features[:, 2]
        response = 2.0 * torch.sigmoid(nitrogen + 0.5 * rain) - 0.4 * ph.square() + 0.6 * torch.sin(2 * rain)
        self.yields = response + 0.2 * torch.randn(num, generator=gen)

    def __len__(self) -> int:
        return len(self.yields)

    def __getitem__(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.features[rows], self.yields[rows]


class ShuffledBatches(Sampler[torch.Tensor]):
    """Yields the row numbers of a whole shuffled batch at a time."""

    def __init__(self, num: int, batch_size: int) -> None:
        self.num = num
        self.batch_size = batch_size

    def __len__(self) -> int:
        return self.num // self.batch_size

    def __iter__(self) -> Iterator[torch.Tensor]:
        order = torch.randperm(self.num)[: len(self) * self.batch_size]
        yield from order.split(self.batch_size)


class YieldModel(L.LightningModule):
    def __init__(self, hidden: int = 256, num_probes: int = 16, penalty: float = 0.5, lr: float = 1e-3) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(NUM_FEATURES, hidden),
            nn.SiLU(),
            nn.Linear(hidden, hidden),
            nn.SiLU(),
            nn.Linear(hidden, hidden),
            nn.SiLU(),
            nn.Linear(hidden, 1),
        )
        self.num_probes = num_probes
        self.penalty = penalty
        self.lr = lr

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.net(features).squeeze(1)

    def monotonicity_penalty(self, features: torch.Tensor) -> torch.Tensor:
        """Mean size of negative slopes of yield over nitrogen at the first fields of the batch."""
        probes = features[: self.num_probes].clone().requires_grad_()
        pred = self(probes)
        slopes = [grad(p, probes, create_graph=True)[0][i, NITROGEN] for i, p in enumerate(pred)]  # costs time
        return F.relu(-torch.stack(slopes)).mean()

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> torch.Tensor:
        features, yields = batch
        loss = F.mse_loss(self(features), yields)
        slope_loss = self.monotonicity_penalty(features)
        self.log_dict({"train_mse": loss, "slope_loss": slope_loss}, on_step=False, on_epoch=True)
        return loss + self.penalty * slope_loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=1e-3)


def main() -> None:
    L.seed_everything(17)
    table = FieldTable(num=51_200, seed=17)
    loader = DataLoader(table, sampler=ShuffledBatches(len(table), batch_size=512), batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(YieldModel(), loader)
    print(f"train mse {trainer.callback_metrics['train_mse']:.4f}")


if __name__ == "__main__":
    main()
