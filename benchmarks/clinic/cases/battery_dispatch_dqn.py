"""A deep Q-network learns from a year-long log of transitions when a grid battery should charge or discharge. Every
update draws its mini-batch with np.random.choice without replacement, which shuffles the indices of the whole buffer.
---
expect: [PD107, PD101]
fix:
  ? |-
    rows = np.random.choice(self.size, self.batch_size, replace=False)  # costs time
  : |-
    rows = self.rng.choice(self.size, self.batch_size, replace=False)
half: score
"""

import copy

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

ACTIONS = np.array([-1.0, -0.5, 0.0, 0.5, 1.0], dtype=np.float32)
HISTORY = 24


def simulate_log(n, batteries=50, seed=5):
    """Random dispatch of a fleet against a noisy daily price: states, actions, rewards, next states."""
    rng = np.random.default_rng(seed)
    hours = n // batteries
    clock = np.arange(hours + HISTORY + 1)
    price = 50 + 20 * np.sin(2 * np.pi * clock / 24) + 8 * np.cumsum(rng.normal(0, 0.3, len(clock)))
    price = ((price - price.mean()) / price.std()).astype(np.float32)
    actions = rng.integers(0, len(ACTIONS), (hours, batteries))
    charge = np.full(batteries, 0.5, dtype=np.float32)
    charges, rewards = np.empty((hours + 1, batteries), np.float32), np.empty((hours, batteries), np.float32)
    charges[0] = charge
    for t in range(hours):
        moved = np.clip(charge + 0.2 * ACTIONS[actions[t]], 0, 1) - charge
        charge = charge + moved
        rewards[t] = -5 * moved * price[t + HISTORY] - 0.05 * np.abs(moved)
        charges[t + 1] = charge
    windows = np.lib.stride_tricks.sliding_window_view(price, HISTORY)[1 : hours + 2]
    return windows, charges, actions, rewards


class ReplayBuffer(IterableDataset):
    def __init__(self, log, batch_size, updates):
        self.windows, self.charges, self.actions, self.rewards = log
        self.batteries = self.charges.shape[1]
        self.size = self.actions.size
        self.batch_size, self.updates = batch_size, updates
        self.rng = np.random.default_rng(17)

    def state(self, hour, battery):
        return torch.from_numpy(np.column_stack([self.windows[hour], self.charges[hour, battery]]))

    def __iter__(self):
        for _ in range(self.updates):
            rows = np.random.choice(self.size, self.batch_size, replace=False)  # costs time
            hour, battery = np.divmod(rows, self.batteries)
            action = torch.from_numpy(self.actions[hour, battery])
            reward = torch.from_numpy(self.rewards[hour, battery])
            yield self.state(hour, battery), action, reward, self.state(hour + 1, battery)


class DispatchDQN(L.LightningModule):
    def __init__(self, gamma=0.97, sync_every=100):
        super().__init__()
        self.gamma, self.sync_every = gamma, sync_every
        self.q = nn.Sequential(
            nn.Linear(HISTORY + 1, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, len(ACTIONS))
        )
        self.target = copy.deepcopy(self.q).requires_grad_(False)

    def training_step(self, batch, batch_idx):
        state, action, reward, following = batch
        with torch.no_grad():
            best = self.q(following).argmax(1, keepdim=True)
            value = reward + self.gamma * self.target(following).gather(1, best).squeeze(1)
        predicted = self.q(state).gather(1, action.unsqueeze(1)).squeeze(1)
        loss = F.smooth_l1_loss(predicted, value)
        self.log("loss", loss, on_step=False, on_epoch=True, batch_size=len(reward))
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if (self.global_step % self.sync_every) == 0:
            self.target.load_state_dict(self.q.state_dict())

    def configure_optimizers(self):
        return torch.optim.Adam(self.q.parameters(), lr=3e-4, fused=True)


def main():
    L.seed_everything(17)
    buffer = ReplayBuffer(simulate_log(400_000), batch_size=256, updates=600)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(DispatchDQN(), DataLoader(buffer, batch_size=None))


if __name__ == "__main__":
    main()
