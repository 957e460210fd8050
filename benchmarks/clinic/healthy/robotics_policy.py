"""A recurrent policy imitates recorded arm movements with teacher forcing over whole episodes.
---
half: score
"""

import lightning
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

JOINTS = 7
STEPS = 60


def make_episodes(n, seed):
    """Seven joints under a PD controller that follows a target; observation is angle, speed and target."""
    g = torch.Generator().manual_seed(seed)
    target = torch.randn(n, JOINTS, generator=g)
    angle, speed = torch.zeros(n, JOINTS), torch.zeros(n, JOINTS)
    observations, actions = [], []
    for _ in range(STEPS):
        torque = 4.0 * (target - angle) - 2.5 * speed
        observations.append(torch.cat([angle, speed, target], dim=1))
        actions.append(torque)
        speed = speed + 0.05 * (torque + 0.2 * torch.randn(n, JOINTS, generator=g))
        angle = angle + 0.05 * speed
    return TensorDataset(torch.stack(observations, dim=1), torch.stack(actions, dim=1))


class ArmPolicy(lightning.LightningModule):
    def __init__(self, hidden=160):
        super().__init__()
        self.lstm = nn.LSTM(3 * JOINTS + JOINTS, hidden, num_layers=2, batch_first=True)
        self.action = nn.Linear(hidden, JOINTS)

    def forward(self, observation, action):
        # the recorded action of the step before is part of the input (teacher forcing)
        previous = F.pad(action[:, :-1], (0, 0, 1, 0))
        hidden, _ = self.lstm(torch.cat([observation, previous], dim=2))
        return self.action(hidden)

    def training_step(self, batch, batch_idx):
        observation, action = batch
        return F.smooth_l1_loss(self(observation, action), action)

    def validation_step(self, batch, batch_idx):
        observation, action = batch
        loss = F.smooth_l1_loss(self(observation, action), action)
        self.log("val_loss", loss, batch_size=len(action))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


def main():
    lightning.seed_everything(17)
    train, val = make_episodes(1_600, seed=1), make_episodes(200, seed=2)
    model = ArmPolicy()
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        model,
        DataLoader(train, sampler=BatchSampler(RandomSampler(train), 32, drop_last=True), batch_size=None),
        DataLoader(val, sampler=BatchSampler(range(len(val)), 100, drop_last=False), batch_size=None),
    )
    print(f"validation loss {trainer.callback_metrics['val_loss']:.4f}")


if __name__ == "__main__":
    main()
