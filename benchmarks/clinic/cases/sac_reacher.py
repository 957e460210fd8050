"""Soft actor-critic on a small simulated arm, warm-started from a million logged transitions. The replay
memory is a deque, from which minibatches are drawn at random positions.
---
expect: [PD107, PD511]
fix:
  ? |-
    import random
    from collections import deque
  : import random
  ? |-
    self.transitions = deque(start, maxlen=len(start))
  : |-
    self.transitions = list(start)
            self.oldest = 0
  ? |-
    self.transitions.append(transition)
  : |-
    self.transitions[self.oldest] = transition
            self.oldest = (self.oldest + 1) % len(self.transitions)
half: score
"""

import copy
import random
from collections import deque

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

OBS, ACT = 11, 3
GAMMA, TAU = 0.99, 0.005
PARTS = (OBS, ACT, 1, OBS)
DRIFT = (0.3 * np.random.default_rng(0).normal(size=(OBS, OBS))).astype(np.float32)
GAIN = np.random.default_rng(2).normal(size=(ACT, OBS)).astype(np.float32)


def move_arm(obs, action):
    """Damped nonlinear dynamics of the joints; the reward is for staying near the origin with little effort."""
    following = np.tanh(obs @ DRIFT + action @ GAIN)
    reward = -np.square(following).sum(-1) - 0.1 * np.square(action).sum(-1)
    return reward, following


class ReplayMemory:
    def __init__(self, start):
        self.transitions = deque(start, maxlen=len(start))

    def append(self, transition):
        self.transitions.append(transition)

    def sample(self, size):
        rows = random.sample(self.transitions, size)  # costs time
        return torch.from_numpy(np.stack(rows)).split(PARTS, dim=1)


class ReplayBatches(IterableDataset):
    def __init__(self, memory, batch_size, steps):
        self.memory, self.batch_size, self.steps = memory, batch_size, steps

    def __iter__(self):
        for _ in range(self.steps):
            yield self.memory.sample(self.batch_size)


def mlp(inputs, outputs, hidden=96):
    middle = nn.Linear(hidden, hidden)
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), middle, nn.ReLU(), nn.Linear(hidden, outputs))


class Critics(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = mlp(OBS + ACT, 1), mlp(OBS + ACT, 1)

    def forward(self, obs, action):
        x = torch.cat([obs, action], dim=1)
        return self.first(x), self.second(x)


class SoftActorCritic(L.LightningModule):
    def __init__(self, memory, alpha=0.1):
        super().__init__()
        self.automatic_optimization = False
        self.memory, self.alpha = memory, alpha
        self.obs = np.zeros(OBS, dtype=np.float32)
        self.actor, self.critics = mlp(OBS, 2 * ACT), Critics()
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)

    def policy(self, obs):
        mean, log_std = self.actor(obs).chunk(2, dim=-1)
        log_std = log_std.clamp(-5, 2)
        noise = torch.randn_like(mean)
        action = torch.tanh(mean + log_std.exp() * noise)
        log_prob = -0.5 * noise.square() - log_std - torch.log(1 - action.square() + 1e-6)
        return action, log_prob.sum(-1, keepdim=True)

    @torch.no_grad()
    def act_once(self):
        action = self.policy(torch.from_numpy(self.obs))[0].numpy()
        reward, following = move_arm(self.obs, action)
        self.memory.append(np.concatenate([self.obs, action, [reward], following], dtype=np.float32))
        self.obs = following

    def training_step(self, batch, batch_idx):
        obs, action, reward, following = batch
        critic_optimizer, actor_optimizer = self.optimizers()
        self.act_once()
        with torch.no_grad():
            next_action, next_log_prob = self.policy(following)
            value = torch.minimum(*self.targets(following, next_action)) - self.alpha * next_log_prob
            target = reward + GAMMA * value
        self.critics.requires_grad_(True)
        critic_loss = sum((q - target).square().mean() for q in self.critics(obs, action))
        critic_optimizer.zero_grad()
        self.manual_backward(critic_loss)
        critic_optimizer.step()

        self.critics.requires_grad_(False)
        new_action, log_prob = self.policy(obs)
        actor_loss = (self.alpha * log_prob - torch.minimum(*self.critics(obs, new_action))).mean()
        actor_optimizer.zero_grad()
        self.manual_backward(actor_loss)
        actor_optimizer.step()
        with torch.no_grad():
            for target_weight, weight in zip(self.targets.parameters(), self.critics.parameters(), strict=True):
                target_weight.lerp_(weight, TAU)

    def configure_optimizers(self):
        critic_optimizer = torch.optim.Adam(self.critics.parameters(), lr=3e-4, fused=True)
        return critic_optimizer, torch.optim.Adam(self.actor.parameters(), lr=3e-4, fused=True)


def logged_transitions(count):
    rng = np.random.default_rng(1)
    obs = np.tanh(rng.normal(size=(count, OBS)).astype(np.float32))
    action = rng.uniform(-1, 1, size=(count, ACT)).astype(np.float32)
    reward, following = move_arm(obs, action)
    return np.concatenate([obs, action, reward[:, None], following], axis=1)


if __name__ == "__main__":
    L.seed_everything(1)
    random.seed(1)
    memory = ReplayMemory(logged_transitions(1_000_000))
    loader = DataLoader(ReplayBatches(memory, batch_size=256, steps=200), batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(SoftActorCritic(memory), loader)
