"""A double DQN agent learns to steer a point to its goal, from a large replay memory that is filled before training.
The replay memory is a deque, and minibatches are drawn from it with random.sample, which has to walk through the deque
for each index.
---
expect: [PD107, PD101]
half: score
fix:
  "        self.memory = deque(maxlen=capacity)": "        self.memory, self.capacity, self.position = [], capacity, 0"
  "        self.memory.append(transition)": |2-
            if len(self.memory) < self.capacity:
                self.memory.append(transition)
            else:
                self.memory[self.position] = transition
                self.position = (self.position + 1) % self.capacity
  "        batch = random.sample(self.memory, batch_size)  # costs time": |2-
            batch = random.sample(self.memory, batch_size)
"""

import copy
import random
from collections import deque

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

MOVES = np.array([[1, 0], [-1, 0], [0, 1], [0, -1], [0, 0]], dtype=np.float32) * 0.1


class ReplayBuffer:
    def __init__(self, capacity):
        self.memory = deque(maxlen=capacity)

    def push(self, transition):
        self.memory.append(transition)

    def sample(self, batch_size):
        batch = random.sample(self.memory, batch_size)  # costs time
        obs, action, reward, new_obs = zip(*batch, strict=False)
        return np.stack(obs), np.array(action), np.array(reward, dtype=np.float32), np.stack(new_obs)


def play(n, seed):
    """Transitions of n independent points, which move at random: position, velocity, goal."""
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(n, 6)).astype(np.float32)
    action = rng.integers(0, len(MOVES), n)
    new_obs = obs.copy()
    new_obs[:, 2:4] = 0.9 * obs[:, 2:4] + MOVES[action]
    new_obs[:, :2] += new_obs[:, 2:4]
    reward = -np.linalg.norm(new_obs[:, :2] - new_obs[:, 4:], axis=1)
    return zip(obs, action.tolist(), reward.tolist(), new_obs, strict=False)


class ReplayDataset(IterableDataset):
    def __init__(self, buffer, batch_size, steps):
        self.buffer, self.batch_size, self.steps = buffer, batch_size, steps

    def __iter__(self):
        for _ in range(self.steps):
            yield self.buffer.sample(self.batch_size)


class DoubleDQN(L.LightningModule):
    def __init__(self, buffer, gamma=0.97):
        super().__init__()
        self.buffer, self.gamma = buffer, gamma
        self.q = nn.Sequential(nn.Linear(6, 192), nn.ReLU(), nn.Linear(192, 192), nn.ReLU(), nn.Linear(192, len(MOVES)))
        self.target = copy.deepcopy(self.q).requires_grad_(False)

    def training_step(self, batch, batch_idx):
        obs, action, reward, new_obs = batch
        with torch.no_grad():
            best = self.q(new_obs).argmax(1, keepdim=True)
            goal = reward + self.gamma * self.target(new_obs).gather(1, best).squeeze(1)
        value = self.q(obs).gather(1, action[:, None]).squeeze(1)
        loss = F.smooth_l1_loss(value, goal)
        self.log("loss", loss)
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        for transition in play(16, self.global_step):
            self.buffer.push(transition)
        if self.global_step % 100 == 0:
            self.target.load_state_dict(self.q.state_dict())

    def configure_optimizers(self):
        return torch.optim.Adam(self.q.parameters(), lr=3e-4)


if __name__ == "__main__":
    L.seed_everything(4)
    buffer = ReplayBuffer(500_000)
    for transition in play(500_000, 0):
        buffer.push(transition)
    loader = DataLoader(ReplayDataset(buffer, 384, 200), batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=3, logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(DoubleDQN(buffer), loader)
