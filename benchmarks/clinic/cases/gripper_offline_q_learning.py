"""A Q network is trained from a large recorded replay buffer of a gripper with eight discrete actions. The batches'
indices are drawn with numpy's legacy choice without replacement, which shuffles the whole buffer for each batch.
---
expect: PD107
fix:
  ? |2-
            for _ in range(self.num_batches):
                idx = np.random.choice(self.size, self.batch_size, replace=False)  # costs time
  : |2-
            rng = np.random.default_rng()
            for _ in range(self.num_batches):
                idx = rng.choice(self.size, self.batch_size, replace=False)
half: score
"""

import copy

import lightning as L
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset

NUM_ACTIONS = 8
OBS_DIM = 14


def record_buffer(size):
    rng = np.random.default_rng(7)
    obs = rng.standard_normal((size, OBS_DIM), dtype=np.float32)
    action = rng.integers(0, NUM_ACTIONS, size)
    push = rng.standard_normal((NUM_ACTIONS, OBS_DIM)).astype(np.float32) * 0.1
    next_obs = 0.95 * obs + push[action]
    reward = -np.abs(next_obs[:, :3]).sum(1)
    done = rng.random(size, dtype=np.float32) < 0.01
    return {
        "obs": torch.from_numpy(obs),
        "action": torch.from_numpy(action),
        "reward": torch.from_numpy(reward),
        "next_obs": torch.from_numpy(next_obs),
        "done": torch.from_numpy(done).float(),
    }


class ReplayBatches(IterableDataset):
    """Uniform batches from the buffer, without repeats within a batch."""

    def __init__(self, buffer, batch_size, num_batches):
        self.buffer = buffer
        self.batch_size = batch_size
        self.num_batches = num_batches
        self.size = len(buffer["reward"])

    def __len__(self):
        return self.num_batches

    def __iter__(self):
        for _ in range(self.num_batches):
            idx = np.random.choice(self.size, self.batch_size, replace=False)  # costs time
            idx = torch.from_numpy(idx)
            yield {name: column[idx] for name, column in self.buffer.items()}


class DoubleQ(L.LightningModule):
    def __init__(self, hidden=256, gamma=0.98, tau=0.01, lr=3e-4):
        super().__init__()
        self.q = nn.Sequential(
            nn.Linear(OBS_DIM, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, NUM_ACTIONS),
        )
        self.target = copy.deepcopy(self.q).requires_grad_(False)
        self.gamma, self.tau, self.lr = gamma, tau, lr

    def training_step(self, batch, batch_idx):
        q = self.q(batch["obs"]).gather(1, batch["action"][:, None]).squeeze(1)
        with torch.no_grad():
            best = self.q(batch["next_obs"]).argmax(1, keepdim=True)
            value = self.target(batch["next_obs"]).gather(1, best).squeeze(1)
            goal = batch["reward"] + self.gamma * (1 - batch["done"]) * value
        loss = F.smooth_l1_loss(q, goal)
        self.log("td_loss", loss)
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        with torch.no_grad():
            torch._foreach_lerp_(list(self.target.parameters()), list(self.q.parameters()), self.tau)

    def configure_optimizers(self):
        return torch.optim.Adam(self.q.parameters(), lr=self.lr, fused=True)


def main():
    L.seed_everything(3)
    loader = DataLoader(ReplayBatches(record_buffer(700_000), batch_size=512, num_batches=120), batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=4, logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(DoubleQ(), loader)


if __name__ == "__main__":
    main()
