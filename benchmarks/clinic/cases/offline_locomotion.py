"""Trains a locomotion policy with TD3+BC on a fixed log of half a million transitions.
Minibatches are drawn without replacement by a legacy RandomState, which permutes the whole log for every batch.
---
expect: [PD101, PD107, PD511]
half: tune
fix:
  ? "self.rng = np.random.RandomState(seed)"
  : "self.rng = np.random.default_rng(seed)"
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

OBS_DIM = 17
ACTION_DIM = 6


class TransitionLog(IterableDataset):
    """Minibatches of logged transitions; each batch holds distinct transitions."""

    def __init__(self, size: int, batch_size: int, batches_per_epoch: int, seed: int) -> None:
        self.size = size
        self.batch_size = batch_size
        self.batches_per_epoch = batches_per_epoch
        self.rng = np.random.RandomState(seed)
        generator = torch.Generator().manual_seed(seed)
        self.observation = torch.randn(size, OBS_DIM, generator=generator)
        self.action = torch.tanh(self.observation[:, :ACTION_DIM] + 0.3 * torch.randn(size, ACTION_DIM))
        self.next_observation = self.observation * 0.95
        self.next_observation[:, :ACTION_DIM] += 0.2 * self.action
        self.reward = self.next_observation[:, 0] - 0.1 * self.action.square().sum(1)
        self.alive = (torch.rand(size, generator=generator) > 0.01).float()

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        for _ in range(self.batches_per_epoch):
            rows = self.rng.choice(self.size, self.batch_size, replace=False)  # costs time
            index = torch.from_numpy(rows)
            yield (
                self.observation[index],
                self.action[index],
                self.reward[index],
                self.next_observation[index],
                self.alive[index],
            )


def mlp(inputs: int, outputs: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs)
    )


class TwinCritic(nn.Module):
    """Two independent action-value functions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = mlp(OBS_DIM + ACTION_DIM, 1, width)
        self.second = mlp(OBS_DIM + ACTION_DIM, 1, width)

    def forward(self, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        joint = torch.cat([observation, action], dim=1)
        return self.first(joint).squeeze(1), self.second(joint).squeeze(1)


class OfflineAgent(L.LightningModule):
    """TD3 with a behavior-cloning term and delayed policy updates."""

    def __init__(self, width: int = 256, discount: float = 0.99, tau: float = 0.005, alpha: float = 2.5) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.actor = mlp(OBS_DIM, ACTION_DIM, width)
        self.critic = TwinCritic(width)
        self.actor_target = deepcopy(self.actor).requires_grad_(False)
        self.critic_target = deepcopy(self.critic).requires_grad_(False)

    @torch.no_grad()
    def bellman_target(self, reward: Tensor, next_observation: Tensor, alive: Tensor) -> Tensor:
        action = torch.tanh(self.actor_target(next_observation))
        noise = (0.2 * torch.randn_like(action)).clamp_(-0.5, 0.5)
        first, second = self.critic_target(next_observation, (action + noise).clamp_(-1.0, 1.0))
        return reward + self.hparams.discount * alive * torch.minimum(first, second)

    @torch.no_grad()
    def update_targets(self) -> None:
        for target, online in ((self.actor_target, self.actor), (self.critic_target, self.critic)):
            torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), self.hparams.tau)

    def training_step(self, batch: tuple[Tensor, ...], batch_idx: int) -> None:
        observation, action, reward, next_observation, alive = batch
        actor_optimizer, critic_optimizer = self.optimizers()

        target = self.bellman_target(reward, next_observation, alive)
        first, second = self.critic(observation, action)
        critic_loss = F.mse_loss(first, target) + F.mse_loss(second, target)
        critic_optimizer.zero_grad()
        self.manual_backward(critic_loss)
        critic_optimizer.step()
        self.log("train/critic_loss", critic_loss)

        if batch_idx % 2 == 0:
            self.critic.requires_grad_(False)
            proposal = torch.tanh(self.actor(observation))
            value = self.critic.first(torch.cat([observation, proposal], dim=1))
            scale = self.hparams.alpha / value.detach().abs().mean()
            actor_loss = -scale * value.mean() + F.mse_loss(proposal, action)
            actor_optimizer.zero_grad()
            self.manual_backward(actor_loss)
            actor_optimizer.step()
            self.critic.requires_grad_(True)
            self.update_targets()

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [
            torch.optim.Adam(self.actor.parameters(), lr=3e-4, fused=True),
            torch.optim.Adam(self.critic.parameters(), lr=3e-4, fused=True),
        ]


def main() -> None:
    L.seed_everything(29)
    log = TransitionLog(size=500_000, batch_size=512, batches_per_epoch=180, seed=29)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(OfflineAgent(), DataLoader(log, batch_size=None))


if __name__ == "__main__":
    main()
