"""PPO on a vectorised cart-pole simulation written in PyTorch; the rollouts and the updates are both batched.
---
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class CartPoles:
    """Many cart-poles advanced together (Gym's CartPole-v1 dynamics)."""

    def __init__(self, n):
        self.state = torch.rand(n, 4) * 0.1 - 0.05
        self.age = torch.zeros(n)

    def step(self, action):
        x, v, theta, omega = self.state.unbind(1)
        force = action * 20.0 - 10.0
        cos, sin = theta.cos(), theta.sin()
        temp = (force + 0.05 * omega**2 * sin) / 1.1
        alpha = (9.8 * sin - cos * temp) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        acc = temp - 0.05 * alpha * cos / 1.1
        state = torch.stack([x + 0.02 * v, v + 0.02 * acc, theta + 0.02 * omega, omega + 0.02 * alpha], 1)
        self.age += 1
        done = (state[:, 0].abs() > 2.4) | (state[:, 2].abs() > 0.2095) | (self.age >= 500)
        self.state = torch.where(done[:, None], torch.rand_like(state) * 0.1 - 0.05, state)
        self.age = torch.where(done, 0.0, self.age)
        return done.float()


class Rollouts(IterableDataset):
    def __init__(self, model, envs=1024, horizon=32, iterations=8, passes=4, minibatch=8192):
        self.model, self.envs, self.horizon = model, CartPoles(envs), horizon
        self.iterations, self.passes, self.minibatch = iterations, passes, minibatch

    @torch.no_grad()
    def collect(self, gamma=0.99, lam=0.95):
        obs, action, logp, done = [], [], [], []
        for _ in range(self.horizon):
            log_prob = F.log_softmax(self.model.policy(self.envs.state), 1)
            a = (torch.rand(len(log_prob)) < log_prob[:, 1].exp()).long()
            obs.append(self.envs.state)
            action.append(a)
            logp.append(log_prob.gather(1, a[:, None]).squeeze(1))
            done.append(self.envs.step(a.float()))
        obs, done = torch.stack(obs), torch.stack(done)
        value = self.model.value(torch.cat([obs, self.envs.state[None]])).squeeze(2)
        delta = 1.0 - done + gamma * value[1:] * (1 - done) - value[:-1]
        advantage, running = torch.empty_like(delta), torch.zeros_like(delta[0])
        for t in reversed(range(self.horizon)):
            running = delta[t] + gamma * lam * (1 - done[t]) * running
            advantage[t] = running
        self.model.done_rate = done.mean()
        returns = advantage + value[:-1]
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        return [x.flatten(0, 1) for x in (obs, torch.stack(action), torch.stack(logp), advantage, returns)]

    def __iter__(self):
        for _ in range(self.iterations):
            data = self.collect()
            for _ in range(self.passes):
                for idx in torch.randperm(len(data[0])).split(self.minibatch):
                    yield [x[idx] for x in data]


def mlp(out, width=64):
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, out))


class PPO(L.LightningModule):
    def __init__(self, clip=0.2, entropy=0.01):
        super().__init__()
        self.policy, self.value = mlp(2), mlp(1)
        self.clip, self.entropy = clip, entropy
        self.done_rate = torch.zeros(())

    def training_step(self, batch, batch_idx):
        obs, action, logp_old, advantage, returns = batch
        log_prob = F.log_softmax(self.policy(obs), 1)
        ratio = (log_prob.gather(1, action[:, None]).squeeze(1) - logp_old).exp()
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - self.clip, 1 + self.clip) * advantage)
        value_loss = F.smooth_l1_loss(self.value(obs).squeeze(1), returns)
        entropy = -(log_prob.exp() * log_prob).sum(1).mean()
        return 0.5 * value_loss - surrogate.mean() - self.entropy * entropy

    def on_train_epoch_end(self):
        self.log("mean_episode_length", 1 / self.done_rate.clamp(min=1e-4))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=7e-4, eps=1e-5, fused=True)


if __name__ == "__main__":
    L.seed_everything(8)
    model = PPO()
    loader = DataLoader(Rollouts(model, iterations=32), batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        precision="bf16-mixed",
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader)
