"""Trains a policy by proximal optimization on rollouts that are collected again from simulated pendulums.
---
half: score
"""

from __future__ import annotations

from collections.abc import Iterator

import lightning as L
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.utils.data import DataLoader, IterableDataset


class PendulumSwarm:
    """Many independent torque-controlled pendulums that are advanced together."""

    def __init__(self, count: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.angle = self.rng.uniform(-np.pi, np.pi, count)
        self.speed = self.rng.uniform(-1.0, 1.0, count)

    def observe(self) -> Tensor:
        columns = np.stack([np.cos(self.angle), np.sin(self.angle), self.speed], axis=1)
        return torch.from_numpy(columns.astype(np.float32))

    def step(self, torque: np.ndarray) -> np.ndarray:
        wrapped = (self.angle + np.pi) % (2 * np.pi) - np.pi
        cost = wrapped**2 + 0.1 * self.speed**2 + 0.001 * torque**2
        self.speed = np.clip(self.speed + 0.05 * (15.0 * np.sin(self.angle) + 3.0 * torque), -8.0, 8.0)
        self.angle = self.angle + 0.05 * self.speed
        return -cost


class ActorCritic(nn.Module):
    """Separate policy and value networks with a state-independent exploration scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.policy = nn.Sequential(
            nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
        )
        self.value = nn.Sequential(
            nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
        )
        self.log_scale = nn.Parameter(torch.zeros(1))

    def act(self, observation: Tensor) -> Normal:
        return Normal(self.policy(observation), self.log_scale.exp(), validate_args=False)


class Rollouts(IterableDataset):
    """Collects a rollout with the current policy and yields shuffled minibatches of it for several passes."""

    def __init__(self, agent: ActorCritic, swarm: PendulumSwarm, horizon: int, passes: int, batch_size: int) -> None:
        self.agent = agent
        self.swarm = swarm
        self.horizon = horizon
        self.passes = passes
        self.batch_size = batch_size

    @torch.no_grad()
    def collect(self) -> tuple[Tensor, ...]:
        seen, taken, density, rewards = [], [], [], []
        for _ in range(self.horizon):
            observation = self.swarm.observe()
            policy = self.agent.act(observation)
            action = policy.sample()
            rewards.append(self.swarm.step(2.0 * np.tanh(action.squeeze(1).numpy())))
            seen.append(observation)
            taken.append(action)
            density.append(policy.log_prob(action))
        observations = torch.stack([*seen, self.swarm.observe()])
        reward = 0.1 * torch.from_numpy(np.stack(rewards).astype(np.float32))
        value = self.agent.value(observations).squeeze(2)
        advantage = torch.zeros_like(reward)
        running = torch.zeros_like(reward[0])
        for t in reversed(range(self.horizon)):
            running = reward[t] + 0.98 * value[t + 1] - value[t] + 0.98 * 0.95 * running
            advantage[t] = running
        columns = (torch.stack(seen), torch.stack(taken), torch.stack(density), advantage, advantage + value[:-1])
        return tuple(column.flatten(0, 1) for column in columns)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        columns = self.collect()
        for _ in range(self.passes):
            for rows in torch.randperm(len(columns[0])).split(self.batch_size):
                yield tuple(column[rows] for column in columns)


class ProximalPolicy(L.LightningModule):
    """Clipped policy updates with a value loss."""

    def __init__(self, agent: ActorCritic, clip: float = 0.2) -> None:
        super().__init__()
        self.agent = agent
        self.clip = clip

    def training_step(self, batch: tuple[Tensor, ...], batch_idx: int) -> Tensor:
        observation, action, old_density, advantage, target = batch
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        ratio = (self.agent.act(observation).log_prob(action) - old_density).exp().squeeze(1)
        clipped = ratio.clamp(1 - self.clip, 1 + self.clip)
        policy_loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
        value_loss = (self.agent.value(observation).squeeze(1) - target).square().mean()
        self.log("train/value_loss", value_loss)
        return policy_loss + 0.5 * value_loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-4, fused=True)


def main() -> None:
    L.seed_everything(31)
    agent = ActorCritic(width=256)
    rollouts = Rollouts(agent, PendulumSwarm(256, seed=31), horizon=64, passes=4, batch_size=1024)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=8,
        gradient_clip_val=0.5,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(ProximalPolicy(agent), DataLoader(rollouts, batch_size=None))


if __name__ == "__main__":
    main()
