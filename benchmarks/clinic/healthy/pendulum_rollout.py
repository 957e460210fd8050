"""Trains a neural simulator of coupled pendulums by backpropagating through autoregressive rollouts.
---
half: score
"""

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

PENDULUMS = 64
ROLLOUT = 8
TIME_STEP = 0.05


def accelerations(angle: Tensor, coupling: float = 0.6) -> Tensor:
    left, right = torch.roll(angle, 1, dims=-1), torch.roll(angle, -1, dims=-1)
    return -torch.sin(angle) + coupling * (left + right - 2 * angle)


class PendulumTrajectories(Dataset[Tensor]):
    """Short trajectories of a ring of coupled pendulums, integrated with a symplectic scheme."""

    def __init__(self, size: int) -> None:
        generator = torch.Generator().manual_seed(41)
        angle = torch.randn(size, PENDULUMS, generator=generator)
        velocity = 0.5 * torch.randn(size, PENDULUMS, generator=generator)
        frames = [torch.cat([angle, velocity], dim=-1)]
        for _ in range(ROLLOUT):
            velocity = velocity + TIME_STEP * accelerations(angle)
            angle = angle + TIME_STEP * velocity
            frames.append(torch.cat([angle, velocity], dim=-1))
        self.states = torch.stack(frames, dim=1)

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, index: list[int]) -> Tensor:
        return self.states[torch.tensor(index)]


class NeuralSimulator(L.LightningModule):
    """Predicts the change of the state over one time step; the rollout feeds each prediction back in."""

    def __init__(self, width: int = 384) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.step_network = nn.Sequential(
            nn.Linear(2 * PENDULUMS, width),
            nn.SiLU(),
            nn.Linear(width, width),
            nn.SiLU(),
            nn.Linear(width, 2 * PENDULUMS),
        )

    def forward(self, state: Tensor, steps: int) -> Tensor:
        predicted = []
        for _ in range(steps):
            state = state + TIME_STEP * self.step_network(state)
            predicted.append(state)
        return torch.stack(predicted, dim=1)

    def training_step(self, batch: Tensor, batch_idx: int) -> None:
        optimizer = self.optimizers()
        predicted = self(batch[:, 0], ROLLOUT)
        errors = (predicted - batch[:, 1:]).square().mean(dim=(0, 2))
        loss = errors.mean()
        optimizer.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(optimizer, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
        optimizer.step()
        self.log("train/loss", loss)
        self.log("train/final_step_error", errors[-1].detach())

    def on_train_epoch_end(self) -> None:
        self.lr_schedulers().step()

    def configure_optimizers(self) -> tuple[list[torch.optim.Optimizer], list]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)]


def main() -> None:
    L.seed_everything(41)
    trajectories = PendulumTrajectories(size=256 * 60)
    sampler = BatchSampler(RandomSampler(trajectories), batch_size=256, drop_last=True)
    loader = DataLoader(trajectories, sampler=sampler, batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=4,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(NeuralSimulator(), loader)


if __name__ == "__main__":
    main()
