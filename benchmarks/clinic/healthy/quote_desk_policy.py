"""Trains a quoting policy for a market maker with proximal policy optimization: an iterable dataset plays many
simulated desks at once with the current policy, and hands out each rollout in a few shuffled minibatches.
---
half: score
"""

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

N_DESKS, HORIZON, N_QUOTES = 512, 24, 9
N_PASSES, MINIBATCH = 2, 1536
SPREADS = np.linspace(0.2, 1.8, N_QUOTES).astype(np.float32)


class QuotePolicy(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.logits = nn.Linear(width, N_QUOTES)
        self.value = nn.Linear(width, 1)

    def forward(self, state):
        h = self.trunk(state)
        return self.logits(h), self.value(h).squeeze(-1)


class DeskRollouts(IterableDataset):
    """Items are minibatches of a rollout of all desks: states, actions, their log probability, rewards to go."""

    def __init__(self, policy, n_rollouts, gamma=0.97):
        self.policy = policy
        self.n_rollouts = n_rollouts
        self.gamma = gamma
        self.rng = np.random.default_rng(77)

    def __iter__(self):
        for _ in range(self.n_rollouts):
            rollout = self.play()
            for _ in range(N_PASSES):
                for rows in torch.randperm(HORIZON * N_DESKS).split(MINIBATCH):
                    yield tuple(column[rows] for column in rollout)

    @torch.no_grad()
    def play(self):
        states = np.empty((HORIZON, N_DESKS, 4), np.float32)
        actions = np.empty((HORIZON, N_DESKS), np.int64)
        rewards = np.empty((HORIZON, N_DESKS), np.float32)
        shocks = self.rng.standard_normal((HORIZON, N_DESKS), np.float32)
        uniform = self.rng.random((HORIZON, 2, N_DESKS), np.float32)
        gumbel = torch.from_numpy(self.rng.standard_exponential((HORIZON, N_DESKS, N_QUOTES), np.float32))
        gumbel = gumbel.clamp_(min=1e-12).log_().neg_()
        log_probs = torch.empty(HORIZON, N_DESKS)
        inventory = np.zeros(N_DESKS, np.float32)
        volatility = np.full(N_DESKS, 0.3, np.float32)
        drift = np.zeros(N_DESKS, np.float32)
        for t in range(HORIZON):
            state = states[t]
            state[:, 0], state[:, 1], state[:, 2], state[:, 3] = inventory, volatility, drift, t / HORIZON
            logits, _ = self.policy(torch.from_numpy(state))
            action = (logits + gumbel[t]).argmax(1)
            log_probs[t] = F.log_softmax(logits, 1).gather(1, action[:, None]).squeeze(1)
            actions[t] = action.numpy()
            half = SPREADS[actions[t]]
            bid_hit = uniform[t, 0] < 0.9 * np.exp(-1.5 * half + drift)
            ask_hit = uniform[t, 1] < 0.9 * np.exp(-1.5 * half - drift)
            move = volatility * shocks[t]
            inventory = inventory + bid_hit - ask_hit
            rewards[t] = half * bid_hit + half * ask_hit + inventory * move - 0.02 * inventory**2
            volatility = np.sqrt(0.02 + 0.7 * volatility**2 + 0.2 * move**2)
            drift = 0.8 * drift - 0.1 * move
        for t in range(HORIZON - 2, -1, -1):
            rewards[t] += self.gamma * rewards[t + 1]
        return (
            torch.from_numpy(states).flatten(0, 1),
            torch.from_numpy(actions).flatten(),
            log_probs.flatten(),
            torch.from_numpy(rewards).flatten(),
        )


class QuoteDesk(L.LightningModule):
    def __init__(self, policy):
        super().__init__()
        self.policy = policy

    def training_step(self, batch, batch_idx):
        states, actions, old_log_probs, returns = batch
        logits, value = self.policy(states)
        log_probs = F.log_softmax(logits, -1)
        advantage = returns - value.detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        chosen = log_probs.gather(1, actions[:, None]).squeeze(1)
        entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
        ratio = (chosen - old_log_probs).exp()
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        loss = -surrogate + 0.5 * F.smooth_l1_loss(value, returns) - 0.01 * entropy
        self.log("mean_return", returns.mean(), batch_size=len(returns))
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


def main():
    L.seed_everything(29)
    policy = QuotePolicy()
    loader = DataLoader(DeskRollouts(policy, n_rollouts=48), batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=1.0,
    )
    trainer.fit(QuoteDesk(policy), loader)


if __name__ == "__main__":
    main()
