"""Offline reinforcement learning (TD3 with a behavior cloning term) of a quadruped's gait from recorded transitions.
---
half: score
"""

import copy

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

OBS, ACT = 27, 8


def record_transitions(count):
    gen = torch.Generator().manual_seed(9)
    obs = torch.randn(count, OBS, generator=gen)
    drive = torch.randn(OBS, ACT, generator=gen) / OBS**0.5
    action = torch.tanh(obs @ drive + 0.3 * torch.randn(count, ACT, generator=gen))
    next_obs = 0.9 * obs + 0.2 * action @ torch.randn(ACT, OBS, generator=gen)
    reward = next_obs[:, 0] - 0.05 * action.square().sum(1)
    done = (torch.rand(count, generator=gen) < 0.005).float()
    return TensorDataset(obs, action, reward, next_obs, done)


def mlp(inputs, outputs, hidden=256):
    return nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, outputs),
    )


class TD3BC(L.LightningModule):
    def __init__(self, gamma=0.99, tau=0.005, alpha=2.5, policy_every=2):
        super().__init__()
        self.automatic_optimization = False
        self.actor = mlp(OBS, ACT)
        self.critics = nn.ModuleList([mlp(OBS + ACT, 1), mlp(OBS + ACT, 1)])
        self.actor_target = copy.deepcopy(self.actor).requires_grad_(False)
        self.critics_target = copy.deepcopy(self.critics).requires_grad_(False)
        self.gamma, self.tau, self.alpha, self.policy_every = gamma, tau, alpha, policy_every

    @torch.no_grad()
    def target_value(self, reward, next_obs, done):
        action = torch.tanh(self.actor_target(next_obs))
        noise = (0.2 * torch.randn_like(action)).clamp(-0.5, 0.5)
        pair = torch.cat([next_obs, (action + noise).clamp(-1, 1)], dim=1)
        value = torch.minimum(*(critic(pair).squeeze(1) for critic in self.critics_target))
        return reward + self.gamma * (1 - done) * value

    def training_step(self, batch, batch_idx):
        obs, action, reward, next_obs, done = batch
        critic_opt, actor_opt = self.optimizers()
        target = self.target_value(reward, next_obs, done)
        pair = torch.cat([obs, action], dim=1)
        critic_loss = sum(F.mse_loss(critic(pair).squeeze(1), target) for critic in self.critics)
        critic_opt.zero_grad()
        self.manual_backward(critic_loss)
        critic_opt.step()
        self.log("critic_loss", critic_loss.detach())
        if batch_idx % self.policy_every:
            return
        self.toggle_optimizer(actor_opt)
        policy = torch.tanh(self.actor(obs))
        q = self.critics[0](torch.cat([obs, policy], dim=1))
        actor_loss = F.mse_loss(policy, action) - self.alpha * q.mean() / q.detach().abs().mean()
        actor_opt.zero_grad()
        self.manual_backward(actor_loss)
        actor_opt.step()
        self.untoggle_optimizer(actor_opt)
        with torch.no_grad():
            torch._foreach_lerp_(list(self.actor_target.parameters()), list(self.actor.parameters()), self.tau)
            torch._foreach_lerp_(list(self.critics_target.parameters()), list(self.critics.parameters()), self.tau)

    def configure_optimizers(self):
        return (
            torch.optim.Adam(self.critics.parameters(), lr=3e-4, fused=True),
            torch.optim.Adam(self.actor.parameters(), lr=3e-4, fused=True),
        )


def main():
    L.seed_everything(83)
    data = record_transitions(1024 * 110)
    loader = DataLoader(data, sampler=BatchSampler(RandomSampler(data), 1024, drop_last=True), batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=3, logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(TD3BC(), loader)


if __name__ == "__main__":
    main()
