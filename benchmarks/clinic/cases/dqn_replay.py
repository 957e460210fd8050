r"""DQN on a point-mass task with a replay buffer whose sampling without replacement permutes the whole buffer for every
batch.
---
expect: PD107
half: score
fix:
  ? "        self.storage = []"
  : "        self.storage = []\n        self.rng = np.random.default_rng(0)"
  ? "        picks = np.random.choice(len(self.storage), batch_size, replace=False)  # costs time"
  : "        picks = self.rng.choice(len(self.storage), batch_size, replace=False)"
"""

import copy

import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

ACTIONS = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]], dtype=np.float32)


def transition(state, action):
    nxt = np.clip(state + 0.1 * ACTIONS[action], -1, 1)
    return nxt, -np.linalg.norm(nxt[..., :2], axis=-1)


class ReplayBuffer:
    def __init__(self, capacity):
        self.capacity = capacity
        self.storage = []
        self.position = 0

    def append(self, experience):
        if len(self.storage) < self.capacity:
            self.storage.append(experience)
        else:
            self.storage[self.position] = experience
        self.position = (self.position + 1) % self.capacity

    def sample(self, batch_size):
        picks = np.random.choice(len(self.storage), batch_size, replace=False)  # costs time
        states, actions, rewards, next_states = zip(*[self.storage[i] for i in picks], strict=False)
        return (np.stack(states), np.array(actions), np.array(rewards, dtype=np.float32), np.stack(next_states))


class ExperienceStream(IterableDataset):
    def __init__(self, buffer, batch_size, batches_per_epoch):
        self.buffer, self.batch_size, self.batches_per_epoch = buffer, batch_size, batches_per_epoch

    def __iter__(self):
        for _ in range(self.batches_per_epoch):
            yield self.buffer.sample(self.batch_size)


class DQN(LightningModule):
    def __init__(self, buffer, hidden=192, gamma=0.97, sync_every=100):
        super().__init__()
        self.buffer, self.gamma, self.sync_every = buffer, gamma, sync_every
        self.net = nn.Sequential(
            nn.Linear(2, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, len(ACTIONS))
        )
        self.target = copy.deepcopy(self.net).requires_grad_(False)
        self.state = np.zeros(2, dtype=np.float32)

    @torch.no_grad()
    def play(self, epsilon=0.1):
        greedy = int(self.net(torch.from_numpy(self.state)).argmax())
        action = np.random.randint(len(ACTIONS)) if np.random.rand() < epsilon else greedy
        nxt, reward = transition(self.state, action)
        self.buffer.append((self.state, action, reward, nxt))
        self.state = nxt

    def training_step(self, batch, batch_idx):
        self.play()
        states, actions, rewards, next_states = batch
        q = self.net(states).gather(1, actions[:, None]).squeeze(1)
        with torch.no_grad():
            goal = rewards + self.gamma * self.target(next_states).amax(dim=1)
        if self.global_step % self.sync_every == 0:
            self.target.load_state_dict(self.net.state_dict())
        return F.smooth_l1_loss(q, goal)

    def configure_optimizers(self):
        return torch.optim.Adam(self.net.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    seed_everything(4)
    buffer = ReplayBuffer(capacity=300_000)
    states = np.random.uniform(-1, 1, size=(300_000, 2)).astype(np.float32)
    actions = np.random.randint(len(ACTIONS), size=300_000)
    next_states, rewards = transition(states, actions)
    for experience in zip(states, actions.tolist(), rewards.tolist(), next_states, strict=False):
        buffer.append(experience)
    loader = DataLoader(ExperienceStream(buffer, batch_size=64, batches_per_epoch=250), batch_size=None)
    trainer = Trainer(
        max_epochs=4,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(DQN(buffer), loader)
