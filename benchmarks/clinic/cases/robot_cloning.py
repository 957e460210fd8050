"""Behavior cloning of a robot arm from demonstrations of many tasks; the time goes into logging one metric per
demonstration.
---
expect: PD502
fix:
  zip(demo_ids.tolist(), errors.tolist(), strict=False): ()
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

JOINTS, CAMERA, HORIZON, DEMOS, LENGTH = 7, 32, 8, 400, 48


def demonstrations():
    gen = torch.Generator().manual_seed(17)
    goal = torch.randn(DEMOS, 1, JOINTS, generator=gen)
    start = torch.randn(DEMOS, 1, JOINTS, generator=gen)
    progress = torch.linspace(0, 1, LENGTH + HORIZON).view(1, -1, 1)
    ease = progress.pow(2) * (3 - 2 * progress)
    path = start + (goal - start) * ease
    path = path + 0.01 * torch.randn(path.shape, generator=gen)
    look = torch.randn(JOINTS, CAMERA, generator=gen)
    pixels = torch.tanh(goal @ look).expand(DEMOS, LENGTH, CAMERA)
    pixels = pixels + 0.05 * torch.randn(pixels.shape, generator=gen)
    state = torch.cat([path[:, :LENGTH], pixels], dim=2).reshape(-1, JOINTS + CAMERA)
    steps = path[:, 1:] - path[:, :-1]
    action = steps.unfold(1, HORIZON, 1)[:, :LENGTH].transpose(2, 3).reshape(-1, HORIZON, JOINTS)
    demo = torch.arange(DEMOS).repeat_interleave(LENGTH)
    return TensorDataset(state, action * 20, demo)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.grow = nn.Linear(width, 2 * width)
        self.shrink = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.shrink(F.gelu(self.grow(self.norm(x))))


class ClonedPolicy(L.LightningModule):
    def __init__(self, width=384, depth=4):
        super().__init__()
        self.embed = nn.Linear(JOINTS + CAMERA, width)
        self.trunk = nn.Sequential(*[Block(width) for _ in range(depth)])
        self.head = nn.Linear(width, HORIZON * JOINTS)

    def forward(self, state):
        return self.head(self.trunk(self.embed(state))).view(-1, HORIZON, JOINTS)

    def training_step(self, batch, batch_idx):
        state, action, demo_ids = batch
        errors = (self(state) - action).abs().mean(dim=(1, 2))
        loss = errors.mean()
        self.log("train_loss", loss)
        for demo, value in zip(demo_ids.tolist(), errors.tolist(), strict=False):
            self.log(f"error/demo_{demo:03d}", value, on_step=False, on_epoch=True, batch_size=1)  # costs time
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=5e-4, weight_decay=1e-3, fused=True)


def main():
    L.seed_everything(17)
    torch.set_num_threads(1)
    data = demonstrations()
    batches = BatchSampler(RandomSampler(data), 64, drop_last=True)
    loader = DataLoader(data, sampler=batches, batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, max_epochs=1
    )
    trainer.fit(ClonedPolicy(), loader)
    print("train_loss", float(trainer.callback_metrics["train_loss"]))


if __name__ == "__main__":
    main()
