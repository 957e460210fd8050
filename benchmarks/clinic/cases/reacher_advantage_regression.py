"""Trains an actor and a critic by advantage-weighted regression on recorded episodes of a reaching task. The mistake:
the lambda returns are computed element by element, for every episode and every time step of the batch.
---
expect: PD304
fix:
  ? |2-
        for b in range(rewards.shape[0]):
            running = values[b, -1]
            for t in reversed(range(rewards.shape[1])):
                mixed = (1 - LAMBDA) * values[b, t + 1] + LAMBDA * running
                running = rewards[b, t] + GAMMA * (1 - dones[b, t]) * mixed  # costs time
                returns[b, t] = running
  : |2-
        running = values[:, -1]
        for t in reversed(range(rewards.shape[1])):
            mixed = (1 - LAMBDA) * values[:, t + 1] + LAMBDA * running
            running = rewards[:, t] + GAMMA * (1 - dones[:, t]) * mixed
            returns[:, t] = running
half: tune
"""

import tempfile

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

GAMMA, LAMBDA, BETA = 0.98, 0.95, 0.3


def record_episodes(n, horizon=32, dim=6):
    gen = torch.Generator().manual_seed(11)
    pos, vel = torch.randn(n, dim, generator=gen), torch.zeros(n, dim)
    goal = torch.randn(n, dim, generator=gen)
    states, actions, rewards, dones = [], [], [], []
    for _ in range(horizon):
        states.append(torch.cat([pos, vel, goal], dim=1))
        action = 0.8 * (goal - pos) - 0.5 * vel + 0.5 * torch.randn(n, dim, generator=gen)
        vel = 0.9 * vel + 0.2 * action
        pos = pos + 0.2 * vel
        distance = (pos - goal).norm(dim=1)
        actions.append(action)
        rewards.append(-distance - 0.01 * action.square().sum(1))
        dones.append((distance < 0.2).float())
    states.append(torch.cat([pos, vel, goal], dim=1))
    return tuple(torch.stack(x, dim=1) for x in (states, actions, rewards, dones))


def lambda_returns(rewards, dones, values):
    returns = torch.empty_like(rewards)
    for b in range(rewards.shape[0]):
        running = values[b, -1]
        for t in reversed(range(rewards.shape[1])):
            mixed = (1 - LAMBDA) * values[b, t + 1] + LAMBDA * running
            running = rewards[b, t] + GAMMA * (1 - dones[b, t]) * mixed  # costs time
            returns[b, t] = running
    return returns


def mlp(n_in, n_out, width=256):
    return nn.Sequential(nn.Linear(n_in, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, n_out))


class AdvantageRegression(L.LightningModule):
    def __init__(self, obs_dim=18, act_dim=6):
        super().__init__()
        self.actor = mlp(obs_dim, act_dim)
        self.critic = mlp(obs_dim, 1)
        self.log_std = nn.Parameter(torch.zeros(act_dim))

    def forward(self, states):
        return torch.distributions.Normal(self.actor(states), self.log_std.exp())

    def losses(self, batch):
        states, actions, rewards, dones = batch
        values = self.critic(states).squeeze(-1)
        with torch.no_grad():
            returns = lambda_returns(rewards, dones, values)
            advantage = returns - values[:, :-1]
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
            weights = torch.exp(advantage * BETA).clamp(max=20.0)
        critic_loss = F.smooth_l1_loss(values[:, :-1], returns)
        actor_loss = -(weights * self(states[:, :-1]).log_prob(actions).sum(-1)).mean()
        return actor_loss, critic_loss

    def training_step(self, batch, batch_idx):
        actor_loss, critic_loss = self.losses(batch)
        self.log_dict({"actor_loss": actor_loss, "critic_loss": critic_loss}, prog_bar=True)
        return actor_loss + 0.5 * critic_loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=5e-4, fused=True)


if __name__ == "__main__":
    L.seed_everything(1)
    episodes = TensorDataset(*record_episodes(744))
    loader = DataLoader(episodes, batch_size=24, shuffle=True, drop_last=True)
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            max_epochs=5, accelerator="cpu", logger=CSVLogger(folder), enable_checkpointing=False, gradient_clip_val=1.0
        )
        trainer.fit(AdvantageRegression(), loader)
