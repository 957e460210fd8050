"""Factorizes ratings that members of a club gave to wines; both embedding tables have sparse gradients.
---
half: score
"""

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

MEMBERS = 60_000
WINES = 30_000
FACTORS = 32
MAX_STEPS = 720


def ratings(count: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    member = torch.randint(0, MEMBERS, (count,), generator=generator)
    wine = (torch.rand(count, generator=generator).pow(2) * WINES).long()
    taste = torch.randn(MEMBERS, 4, generator=generator)
    style = torch.randn(WINES, 4, generator=generator)
    score = 3.5 + 0.4 * (taste[member] * style[wine]).sum(dim=1) + 0.4 * torch.randn(count, generator=generator)
    return TensorDataset(member, wine, score.clamp(1.0, 5.0))


class TasteModel(nn.Module):
    """Factors of member and wine, their product, and a small network on top."""

    def __init__(self, hidden: int = 384) -> None:
        super().__init__()
        self.member = nn.Embedding(MEMBERS, FACTORS, sparse=True)
        self.wine = nn.Embedding(WINES, FACTORS, sparse=True)
        nn.init.normal_(self.member.weight, std=0.1)
        nn.init.normal_(self.wine.weight, std=0.1)
        self.net = nn.Sequential(
            nn.Linear(3 * FACTORS, hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, 1),
        )

    def forward(self, member: torch.Tensor, wine: torch.Tensor) -> torch.Tensor:
        taste, style = self.member(member), self.wine(wine)
        return self.net(torch.cat([taste, style, taste * style], dim=1)).squeeze(1)


class RatingModule(L.LightningModule):
    def __init__(self, learning_rate: float = 0.03) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.model = TasteModel()
        self.mean = 3.5

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        member, wine, score = batch
        return F.mse_loss(self.model(member, wine), score - self.mean)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adagrad(self.parameters(), lr=self.learning_rate)


def main() -> None:
    L.seed_everything(75)
    dataset = ratings(count=400_000, seed=75)
    batches = BatchSampler(RandomSampler(dataset), batch_size=1024, drop_last=True)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=MAX_STEPS,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
    )
    trainer.fit(RatingModule(), DataLoader(dataset, sampler=batches, batch_size=None))


if __name__ == "__main__":
    main()
