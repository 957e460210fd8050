"""Offline Q-learning for warehouse robots from a replay table, with twin critics and a slowly moving target network.
Healthy: whole batches are gathered from memory, targets need no graph, and the target update is one fused call.
---
half: score
"""

import copy
from collections.abc import Iterator

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

OBSERVATION = 48
ACTIONS = 9


class ReplayTable(Dataset):
    """Logged transitions; indexing with a tensor of rows returns a batch."""

    def __init__(self, num: int, seed: int) -> None:
        gen = torch.Generator().manual_seed(seed)
        self.obs = torch.randn(num, OBSERVATION, generator=gen)
        self.action = torch.randint(0, ACTIONS, (num,), generator=gen)
        moves = 0.3 * torch.randn(ACTIONS, OBSERVATION, generator=gen)
        self.next_obs = 0.9 * self.obs + moves[self.action] + 0.1 * torch.randn(num, OBSERVATION, generator=gen)
        goal = torch.randn(OBSERVATION, generator=gen) / OBSERVATION**0.5
        self.reward = torch.tanh(self.next_obs @ goal)
        self.alive = (torch.rand(num, generator=gen) > 0.02).float()

    def __len__(self) -> int:
        return len(self.action)

    def __getitem__(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        return {
            "obs": self.obs[rows],
            "action": self.action[rows],
            "reward": self.reward[rows],
            "next_obs": self.next_obs[rows],
            "alive": self.alive[rows],
        }


class RandomBatches(Sampler[torch.Tensor]):
    """Yields uniformly drawn row numbers, one batch at a time."""

    def __init__(self, num: int, batch_size: int, num_batches: int) -> None:
        self.num, self.batch_size, self.num_batches = num, batch_size, num_batches

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(self.num_batches):
            yield torch.randint(self.num, (self.batch_size,))


class TwinCritic(nn.Module):
    """Two Q networks over the same observation."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.first = self._tower(hidden)
        self.second = self._tower(hidden)

    @staticmethod
    def _tower(hidden: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Linear(OBSERVATION, hidden),
            nn.LayerNorm(hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, ACTIONS),
        )

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.first(obs), self.second(obs)


class OfflineAgent(L.LightningModule):
    def __init__(self, hidden: int = 256, gamma: float = 0.97, tau: float = 0.005, lr: float = 3e-4) -> None:
        super().__init__()
        self.critic = TwinCritic(hidden)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.gamma, self.tau, self.lr = gamma, tau, lr

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        with torch.no_grad():
            next_q = torch.minimum(*self.target(batch["next_obs"])).amax(dim=1)
            target = batch["reward"] + self.gamma * batch["alive"] * next_q
        action = batch["action"].unsqueeze(1)
        first, second = (q.gather(1, action).squeeze(1) for q in self.critic(batch["obs"]))
        loss = F.smooth_l1_loss(first, target) + F.smooth_l1_loss(second, target)
        self.log("td_loss", loss, on_step=False, on_epoch=True, batch_size=len(target))
        return loss

    @torch.no_grad()
    def on_train_batch_end(self, outputs, batch, batch_idx) -> None:
        torch._foreach_lerp_(list(self.target.parameters()), list(self.critic.parameters()), self.tau)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.critic.parameters(), lr=self.lr, fused=True)


def main() -> None:
    L.seed_everything(8)
    table = ReplayTable(num=100_000, seed=8)
    loader = DataLoader(table, sampler=RandomBatches(len(table), batch_size=512, num_batches=300), batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=3,
        gradient_clip_val=10.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(OfflineAgent(), loader)
    print(f"TD loss {trainer.callback_metrics['td_loss']:.4f}")


if __name__ == "__main__":
    main()
