"""Proximal policy optimization learns to restock a warehouse with several products. The data set rolls the current
policy out in a vectorised simulator and then yields shuffled mini-batches of what it has seen.
---
half: score
"""

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

PRODUCTS = 6
CAPACITY = 20.0
LEVELS = 5


class Warehouse:
    """Many warehouses side by side; demand is seasonal, orders arrive after one day."""

    def __init__(self, n, seed):
        self.n = n
        self.rng = np.random.default_rng(seed)
        self.stock = self.rng.uniform(0, CAPACITY, (n, PRODUCTS))
        self.ordered = np.zeros((n, PRODUCTS))
        self.day = self.rng.integers(0, 365, n)
        self.base = np.linspace(1.5, 4.0, PRODUCTS)

    def observe(self):
        phase = 2 * np.pi * self.day[:, None] / 365
        parts = [self.stock / CAPACITY, self.ordered / CAPACITY, np.sin(phase), np.cos(phase)]
        return torch.from_numpy(np.concatenate(parts, axis=1).astype(np.float32))

    def step(self, action):
        demand = self.rng.poisson(self.base * (1 + 0.6 * np.sin(2 * np.pi * self.day[:, None] / 365 + self.base)))
        self.stock = np.minimum(self.stock + self.ordered, CAPACITY)
        sold = np.minimum(self.stock, demand)
        self.stock -= sold
        self.ordered = action * (CAPACITY / 2 / (LEVELS - 1))
        self.day = (self.day + 1) % 365
        reward = (2 * sold - 0.2 * self.stock - self.ordered - 0.5 * (self.ordered > 0)).sum(1)
        return torch.from_numpy((reward / 20).astype(np.float32))


class ActorCritic(nn.Module):
    def __init__(self, hidden=192):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2 * PRODUCTS + 2, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.heads = nn.Linear(hidden, PRODUCTS * LEVELS + 1)

    def forward(self, state):
        out = self.heads(self.body(state))
        return out[:, :-1].unflatten(1, (PRODUCTS, LEVELS)).log_softmax(-1), out[:, -1]


class Rollouts(IterableDataset):
    def __init__(self, policy, rounds, envs=64, horizon=32, passes=3, batch_size=512, gamma=0.97, lam=0.95):
        self.policy, self.rounds, self.horizon, self.passes = policy, rounds, horizon, passes
        self.batch_size, self.gamma, self.lam = batch_size, gamma, lam
        self.world = Warehouse(envs, seed=41)

    @torch.no_grad()
    def collect(self):
        states, actions, chosen, values, rewards = [], [], [], [], []
        for _ in range(self.horizon):
            state = self.world.observe()
            log_p, value = self.policy(state)
            gumbel = -torch.empty_like(log_p).exponential_().log()
            action = (log_p + gumbel).argmax(-1, keepdim=True)
            states.append(state)
            actions.append(action)
            chosen.append(log_p.gather(-1, action).sum((1, 2)))
            values.append(value)
            rewards.append(self.world.step(action.squeeze(-1).numpy()))
        following = self.policy(self.world.observe())[1]
        advantage, advantages = torch.zeros_like(following), []
        for value, reward in zip(reversed(values), reversed(rewards), strict=False):
            advantage = reward + self.gamma * following - value + self.gamma * self.lam * advantage
            advantages.append(advantage)
            following = value
        gains = torch.cat(advantages[::-1])
        returns = gains + torch.cat(values)
        gains = (gains - gains.mean()) / (gains.std() + 1e-6)
        return torch.cat(states), torch.cat(actions), torch.cat(chosen), gains, returns

    def __iter__(self):
        for _ in range(self.rounds):
            seen = self.collect()
            for _ in range(self.passes):
                for rows in torch.randperm(len(seen[0])).split(self.batch_size):
                    yield tuple(part[rows] for part in seen)


class PPO(L.LightningModule):
    def __init__(self, policy, clip=0.2):
        super().__init__()
        self.policy, self.clip = policy, clip

    def training_step(self, batch, batch_idx):
        state, action, chosen, gains, returns = batch
        log_p, value = self.policy(state)
        ratio = (log_p.gather(-1, action).sum((1, 2)) - chosen).exp()
        actor = -torch.minimum(ratio * gains, ratio.clamp(1 - self.clip, 1 + self.clip) * gains).mean()
        entropy = -(log_p.exp() * log_p).sum(-1).mean()
        return actor + 0.5 * F.mse_loss(value, returns) - 0.01 * entropy

    def configure_optimizers(self):
        return torch.optim.Adam(self.policy.parameters(), lr=5e-4, fused=True)


def main():
    L.seed_everything(41)
    policy = ActorCritic()
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=1,
        gradient_clip_val=0.5,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(PPO(policy), DataLoader(Rollouts(policy, rounds=70), batch_size=None))


if __name__ == "__main__":
    main()
