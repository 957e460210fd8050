"""Learns a forward model of a robot arm from the last 600,000 logged transitions, drawn at random from a replay memory.
The memory is a deque, and reading an item from the middle of a deque means walking there block by block.
---
expect: [PD107, PD511, PD101]
fix:
  "self.memory = deque(maxlen=capacity)": "self.memory = []"
  "self.memory.extend(transitions)": |2-
    self.memory.extend(transitions)
            del self.memory[: -self.capacity]
half: score
"""

from collections import deque

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

JOINTS = 7
STATE = 2 * JOINTS


def swing(arms: int, ticks: int, rng: np.random.Generator) -> np.ndarray:
    """Rows of (state, torque, next state) of many arms that are moved by smooth random torques."""
    angle = rng.normal(0, 0.5, (arms, JOINTS)).astype(np.float32)
    speed = np.zeros_like(angle)
    torque = np.zeros_like(angle)
    coupling = 0.1 * rng.normal(0, 1, (JOINTS, JOINTS)).astype(np.float32)
    rows = []
    for _ in range(ticks):
        torque = 0.9 * torque + 0.4 * rng.standard_normal(angle.shape, dtype=np.float32)
        before = np.concatenate([angle, speed, torque], axis=1)
        pull = torque - np.sin(angle) - 0.3 * speed + np.cos(angle) @ coupling
        speed = speed + 0.05 * pull
        angle = angle + 0.05 * speed
        rows.append(np.concatenate([before, angle, speed], axis=1))
    return np.concatenate(rows)


class ReplayMemory:
    def __init__(self, capacity: int):
        self.capacity = capacity
        self.memory = deque(maxlen=capacity)

    def extend(self, transitions) -> None:
        self.memory.extend(transitions)

    def sample(self, count: int, rng: np.random.Generator) -> torch.Tensor:
        picks = rng.integers(len(self.memory), size=count).tolist()
        rows = [self.memory[i] for i in picks]  # costs time
        return torch.from_numpy(np.stack(rows))


class ReplayBatches(IterableDataset):
    def __init__(self, memory: ReplayMemory, batch_size: int, batches: int):
        self.memory = memory
        self.batch_size = batch_size
        self.batches = batches
        self.rng = np.random.default_rng(7)

    def __iter__(self):
        for _ in range(self.batches):
            yield self.memory.sample(self.batch_size, self.rng)


class ArmDynamics(L.LightningModule):
    def __init__(self, width: int = 192):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(STATE + JOINTS, width),
            nn.SiLU(),
            nn.Linear(width, width),
            nn.SiLU(),
            nn.Linear(width, STATE),
        )

    def forward(self, state: torch.Tensor, torque: torch.Tensor) -> torch.Tensor:
        return state + 0.1 * self.net(torch.cat([state, torque], dim=1))

    def training_step(self, batch, batch_idx):
        state, torque, after = batch.split([STATE, JOINTS, STATE], dim=1)
        loss = 1000 * nn.functional.mse_loss(self(state, torque), after)
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(batch))
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


def main():
    L.seed_everything(7)
    memory = ReplayMemory(capacity=600_000)
    rng = np.random.default_rng(7)
    for _ in range(4):
        memory.extend(swing(arms=400, ticks=450, rng=rng))
    loader = DataLoader(ReplayBatches(memory, batch_size=256, batches=400), batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=3, logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(ArmDynamics(), loader)
    print(trainer.callback_metrics["train_loss"].item())


if __name__ == "__main__":
    main()
