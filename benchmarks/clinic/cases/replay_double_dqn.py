"""Double DQN with a dueling network and a large replay buffer that controls a batch of simulated pendulums.
Each minibatch is drawn with np.random.choice(..., replace=False), which permutes all indices of the buffer.
---
expect: PD107
fix:
  ? "idx = np.random.choice(self.size, batch_size, replace=False)  # costs time"
  : "idx = np.random.randint(0, self.size, batch_size)"
also: {PD301: "most of the rest is matrix multiplication, which such a CPU does faster in bf16"}
half: tune
"""

import copy

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

TORQUES = np.linspace(-2.0, 2.0, 7, dtype=np.float32)


class Pendulums:
    """A batch of inverted pendulums with the dynamics of Gym's Pendulum-v1."""

    def __init__(self, n, rng):
        self.n, self.rng = n, rng
        self.theta = rng.uniform(-np.pi, np.pi, n).astype(np.float32)
        self.omega = rng.uniform(-1, 1, n).astype(np.float32)

    def observe(self):
        return np.stack([np.cos(self.theta), np.sin(self.theta), self.omega / 8], 1)

    def step(self, action):
        u = TORQUES[action]
        angle = (self.theta + np.pi) % (2 * np.pi) - np.pi
        reward = -(angle**2 + 0.1 * self.omega**2 + 0.001 * u**2) / 10
        self.omega = np.clip(self.omega + (15 * np.sin(self.theta) + 3 * u) * 0.05, -8, 8)
        self.theta = self.theta + self.omega * 0.05
        restart = self.rng.random(self.n) < 0.005
        self.theta = np.where(restart, self.rng.uniform(-np.pi, np.pi, self.n), self.theta).astype(np.float32)
        return reward.astype(np.float32), restart


class ReplayBuffer:
    def __init__(self, capacity):
        self.obs = np.zeros((capacity, 3), np.float32)
        self.next_obs = np.zeros((capacity, 3), np.float32)
        self.action = np.zeros(capacity, np.int64)
        self.reward = np.zeros(capacity, np.float32)
        self.capacity, self.size, self.pos = capacity, 0, 0

    def add(self, obs, action, reward, next_obs):
        idx = (self.pos + np.arange(len(obs))) % self.capacity
        self.obs[idx], self.action[idx] = obs, action
        self.reward[idx], self.next_obs[idx] = reward, next_obs
        self.pos = (self.pos + len(obs)) % self.capacity
        self.size = min(self.size + len(obs), self.capacity)

    def sample(self, batch_size):
        idx = np.random.choice(self.size, batch_size, replace=False)  # costs time
        return self.obs[idx], self.action[idx], self.reward[idx], self.next_obs[idx]


class ReplayDataset(IterableDataset):
    def __init__(self, buffer, batch_size, steps):
        self.buffer, self.batch_size, self.steps = buffer, batch_size, steps

    def __iter__(self):
        for _ in range(self.steps):
            yield tuple(torch.from_numpy(a) for a in self.buffer.sample(self.batch_size))


class DuelingQ(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.value, self.advantage = nn.Linear(width, 1), nn.Linear(width, len(TORQUES))

    def forward(self, obs):
        h = self.body(obs)
        a = self.advantage(h)
        return self.value(h) + a - a.mean(1, keepdim=True)


class DoubleDQN(L.LightningModule):
    def __init__(self, envs=64, warmup=4000, capacity=400_000, gamma=0.97):
        super().__init__()
        self.q = DuelingQ()
        self.target = copy.deepcopy(self.q).requires_grad_(False)
        self.gamma, self.envs = gamma, Pendulums(envs, np.random.default_rng(0))
        self.buffer = ReplayBuffer(capacity)
        for _ in range(warmup):
            self.act(epsilon=1.0)

    @torch.no_grad()
    def act(self, epsilon):
        obs = self.envs.observe()
        action = np.random.randint(0, len(TORQUES), self.envs.n)
        if epsilon < 1:
            greedy = self.q(torch.from_numpy(obs)).argmax(1).numpy()
            action = np.where(np.random.random(self.envs.n) < epsilon, action, greedy)
        reward, restart = self.envs.step(action)
        keep = ~restart
        self.buffer.add(obs[keep], action[keep], reward[keep], self.envs.observe()[keep])
        return reward.mean()

    def training_step(self, batch, batch_idx):
        self.log("reward", float(self.act(epsilon=max(0.05, 1 - self.global_step / 500))))
        obs, action, reward, next_obs = batch
        with torch.no_grad():
            best = self.q(next_obs).argmax(1, keepdim=True)
            goal = reward + self.gamma * self.target(next_obs).gather(1, best).squeeze(1)
        loss = F.smooth_l1_loss(self.q(obs).gather(1, action[:, None]).squeeze(1), goal)
        self.log("loss", loss)
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if self.global_step % 100 == 0:
            self.target.load_state_dict(self.q.state_dict())

    def configure_optimizers(self):
        return torch.optim.Adam(self.q.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    L.seed_everything(11)
    model = DoubleDQN()
    loader = DataLoader(ReplayDataset(model.buffer, batch_size=512, steps=400), batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader)
