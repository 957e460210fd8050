"""Trains a Gaussian policy with 17 joint actions by PPO on a vectorized toy locomotion task.
The policy's distribution is a MultivariateNormal with a full covariance matrix built from a diagonal, so each minibatch
pays for batched Cholesky factorizations and triangular solves that independent normals do not need.
---
expect: [PD330, PD336]
fix:
  ? "from torch.distributions import MultivariateNormal"
  : "from torch.distributions import Independent, Normal"
  ? "        return MultivariateNormal(mean, torch.diag_embed(std**2))  # costs time"
  : "        return Independent(Normal(mean, std), 1)"
half: tune
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import MultivariateNormal
from torch.utils.data import DataLoader, IterableDataset

OBS, ACT = 60, 17


class Walker:
    """Many copies of a damped linear system that is rewarded for moving along its first coordinate."""

    def __init__(self, envs, seed=0):
        gen = torch.Generator().manual_seed(seed)
        self.a = 0.95 * torch.linalg.qr(torch.randn(OBS, OBS, generator=gen))[0]
        self.b = 0.3 * torch.randn(ACT, OBS, generator=gen) / ACT**0.5
        self.state = torch.randn(envs, OBS, generator=gen)

    def step(self, action):
        self.state = torch.tanh(self.state @ self.a + action @ self.b)
        return self.state, self.state[:, 0] - 0.01 * action.square().sum(-1)


def mlp(outputs):
    return nn.Sequential(nn.Linear(OBS, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, outputs))


class PPO(L.LightningModule):
    def __init__(self, gamma=0.99, lam=0.95, clip=0.2):
        super().__init__()
        self.gamma, self.lam, self.clip = gamma, lam, clip
        self.actor, self.critic = mlp(ACT), mlp(1)
        self.log_std = nn.Parameter(torch.full((ACT,), -0.5))

    def policy(self, obs):
        mean = self.actor(obs)
        std = self.log_std.exp().expand_as(mean)
        return MultivariateNormal(mean, torch.diag_embed(std**2))  # costs time

    @torch.no_grad()
    def rollout(self, walker, steps):
        obs, rows = walker.state, []
        for _ in range(steps):
            dist = self.policy(obs)
            action = dist.sample()
            nxt, reward = walker.step(action)
            rows.append((obs, action, dist.log_prob(action), reward))
            obs = nxt
        obs_t, action, logp, reward = (torch.stack(x) for x in zip(*rows, strict=True))
        value = self.critic(torch.cat([obs_t, obs[None]])).squeeze(-1)
        advantage, running = torch.zeros_like(reward), torch.zeros(reward.size(1))
        for t in range(steps - 1, -1, -1):
            delta = reward[t] + self.gamma * value[t + 1] - value[t]
            running = delta + self.gamma * self.lam * running
            advantage[t] = running
        return [x.flatten(0, 1) for x in (obs_t, action, logp, advantage, advantage + value[:-1])]

    def training_step(self, batch, batch_idx):
        obs, action, old_logp, advantage, target = batch
        dist = self.policy(obs)
        ratio = torch.exp(dist.log_prob(action) - old_logp)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        gain = torch.min(ratio * advantage, ratio.clamp(1 - self.clip, 1 + self.clip) * advantage).mean()
        value_loss = F.mse_loss(self.critic(obs).squeeze(-1), target)
        return 0.5 * value_loss - gain - 0.003 * dist.entropy().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-4, fused=True)


class Rollouts(IterableDataset):
    def __init__(self, agent, walker, steps=128, passes=5, minibatch=1024):
        self.agent, self.walker, self.steps, self.passes, self.minibatch = agent, walker, steps, passes, minibatch

    def __iter__(self):
        data = self.agent.rollout(self.walker, self.steps)
        for _ in range(self.passes):
            for index in torch.randperm(len(data[0])).split(self.minibatch):
                yield [x[index] for x in data]


if __name__ == "__main__":
    L.seed_everything(0)
    agent = PPO()
    loader = DataLoader(Rollouts(agent, Walker(envs=64)), batch_size=None)
    trainer = L.Trainer(
        max_epochs=7, accelerator="cpu", gradient_clip_val=0.5, logger=False, enable_checkpointing=False
    )
    trainer.fit(agent, loader)
