"""Offline double deep Q-learning from a large log of transitions; each minibatch is drawn with
np.random.choice(replace=False), which permutes the whole log.
---
expect: PD107
half: score
fix:
  ? "idx = np.random.choice(self.size, self.batch_size, replace=False)  # costs time"
  : "idx = np.random.randint(0, self.size, self.batch_size)"
"""

import copy

import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

STATE_DIM = 11
N_ACTIONS = 5


class TransitionLog(IterableDataset):
    """Minibatches of logged (state, action, reward, next state, done)."""

    def __init__(self, size=400_000, batch_size=128, batches_per_epoch=150):
        rng = np.random.default_rng(8)
        self.size = size
        self.batch_size = batch_size
        self.batches_per_epoch = batches_per_epoch
        self.states = rng.standard_normal((size + 1, STATE_DIM), dtype=np.float32)
        self.actions = rng.integers(0, N_ACTIONS, size)
        self.rewards = self.states[:size, 0] * (self.actions - 2).astype(np.float32)
        self.dones = (rng.random(size) < 0.01).astype(np.float32)

    def __iter__(self):
        for _ in range(self.batches_per_epoch):
            idx = np.random.choice(self.size, self.batch_size, replace=False)  # costs time
            batch = (
                self.states[idx],
                self.actions[idx],
                self.rewards[idx],
                self.states[idx + 1],
                self.dones[idx],
            )
            yield tuple(torch.from_numpy(part) for part in batch)


class QNetwork(nn.Module):
    def __init__(self, hidden=256):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(STATE_DIM, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.value = nn.Linear(hidden, 1)
        self.advantage = nn.Linear(hidden, N_ACTIONS)

    def forward(self, state):
        h = self.body(state)
        advantage = self.advantage(h)
        return self.value(h) + advantage - advantage.mean(dim=1, keepdim=True)


class DoubleDQN(LightningModule):
    def __init__(self, gamma=0.98, tau=0.01):
        super().__init__()
        self.q = QNetwork()
        self.target_q = copy.deepcopy(self.q).requires_grad_(False)
        self.gamma, self.tau = gamma, tau

    def training_step(self, batch, batch_idx):
        states, actions, rewards, next_states, dones = batch
        q = self.q(states).gather(1, actions[:, None]).squeeze(1)
        with torch.no_grad():
            best = self.q(next_states).argmax(dim=1, keepdim=True)
            future = self.target_q(next_states).gather(1, best).squeeze(1)
            target = rewards + self.gamma * (1 - dones) * future
        loss = F.smooth_l1_loss(q, target)
        self.log("td_loss", loss)
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        with torch.no_grad():
            torch._foreach_lerp_(list(self.target_q.parameters()), list(self.q.parameters()), self.tau)

    def configure_optimizers(self):
        return torch.optim.Adam(self.q.parameters(), lr=3e-4, fused=True)


if __name__ == "__main__":
    seed_everything(0)
    loader = DataLoader(TransitionLog(), batch_size=None)
    trainer = Trainer(
        accelerator="cpu", max_epochs=4, enable_progress_bar=False, enable_checkpointing=False, logger=False
    )
    trainer.fit(DoubleDQN(), loader)
