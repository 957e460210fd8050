"""Trains a Wasserstein GAN with gradient penalty on tabular customer records with several critic steps per sample.
---
half: score
"""

from __future__ import annotations

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

NUM_COLUMNS = 40
NOISE_DIM = 64


class CustomerRecords(Dataset):
    """Correlated and partly skewed columns of standardized customer records."""

    def __init__(self, num_records: int) -> None:
        factors = torch.randn(num_records, 6)
        columns = factors @ torch.randn(6, NUM_COLUMNS) * 0.5 + 0.5 * torch.randn(num_records, NUM_COLUMNS)
        columns[:, ::4] = columns[:, ::4].exp().clamp_(max=8.0)
        self.records = (columns - columns.mean(0)) / columns.std(0)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: list[int]) -> Tensor:
        return self.records[index]


def network(inputs: int, outputs: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, width),
        nn.LeakyReLU(0.2),
        nn.Linear(width, width),
        nn.LeakyReLU(0.2),
        nn.Linear(width, width),
        nn.LeakyReLU(0.2),
        nn.Linear(width, outputs),
    )


class RecordSynthesizer(L.LightningModule):
    """WGAN-GP: the critic is updated in every step, the generator in every fourth."""

    def __init__(self, width: int = 256, critic_steps: int = 4, penalty: float = 10.0) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.generator = network(NOISE_DIM, NUM_COLUMNS, width)
        self.critic = network(NUM_COLUMNS, 1, width)

    def sample(self, count: int) -> Tensor:
        return self.generator(torch.randn(count, NOISE_DIM, device=self.device))

    def gradient_penalty(self, real: Tensor, fake: Tensor) -> Tensor:
        share = torch.rand(len(real), 1, device=real.device)
        mixed = torch.lerp(real, fake, share).requires_grad_(True)
        score = self.critic(mixed).sum()
        (slope,) = torch.autograd.grad(score, mixed, create_graph=True, retain_graph=True)
        return (slope.norm(dim=1) - 1).square().mean()

    def critic_step(self, real: Tensor, optimizer: torch.optim.Optimizer) -> None:
        with torch.no_grad():
            fake = self.sample(len(real))
        distance = self.critic(real).mean() - self.critic(fake).mean()
        penalty = self.gradient_penalty(real, fake)
        optimizer.zero_grad()
        self.manual_backward(self.hparams.penalty * penalty - distance)
        optimizer.step()
        self.log_dict({"train/distance": distance, "train/penalty": penalty})

    def generator_step(self, count: int, optimizer: torch.optim.Optimizer) -> None:
        self.critic.requires_grad_(False)
        loss = -self.critic(self.sample(count)).mean()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        self.critic.requires_grad_(True)
        self.log("train/generator_loss", loss)

    def training_step(self, batch: Tensor, batch_idx: int) -> None:
        critic_optimizer, generator_optimizer = self.optimizers()
        self.critic_step(batch, critic_optimizer)
        if (batch_idx + 1) % self.hparams.critic_steps == 0:
            self.generator_step(len(batch), generator_optimizer)

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [
            torch.optim.Adam(self.critic.parameters(), lr=2e-4, betas=(0.0, 0.9), fused=True),
            torch.optim.Adam(self.generator.parameters(), lr=2e-4, betas=(0.0, 0.9), fused=True),
        ]


def main() -> None:
    L.seed_everything(23)
    records = CustomerRecords(num_records=512 * 180)
    sampler = BatchSampler(RandomSampler(records), batch_size=512, drop_last=True)
    loader = DataLoader(records, sampler=sampler, batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(RecordSynthesizer(), loader)


if __name__ == "__main__":
    main()
