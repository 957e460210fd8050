"""Clones a gripper controller: a transformer reads the last observations and gives a Gaussian over the next twelve
joint commands. The diagonal Gaussian is built as a full MultivariateNormal, whose constructor factorises an 84 x 84
covariance per sample.
---
expect: PD330
fix:
  "from torch.distributions import MultivariateNormal": "from torch.distributions import Independent, Normal"
  ? |-
    return MultivariateNormal(mean, torch.diag_embed(std.square()))  # costs time
  : |-
    return Independent(Normal(mean, std), 1)
half: tune
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import MultivariateNormal
from torch.utils.data import DataLoader, Dataset

N_JOINTS, CHUNK, OBS_DIM, OBS_STEPS = 7, 12, 38, 10


class Demonstrations(Dataset):
    """Teleoperated episodes; one item is an observation window and the chunk of commands that followed."""

    def __init__(self, n_episodes, length, seed):
        gen = torch.Generator().manual_seed(seed)
        t = torch.linspace(0, 6.0, length)
        freq = torch.rand(n_episodes, 1, N_JOINTS, generator=gen) * 2 + 0.5
        phase = torch.rand(n_episodes, 1, N_JOINTS, generator=gen) * 6.28
        self.commands = torch.sin(freq * t[None, :, None] + phase)
        mix = torch.randn(N_JOINTS, OBS_DIM, generator=torch.Generator().manual_seed(5)) / 3
        noise = torch.randn(n_episodes, length, OBS_DIM, generator=gen)
        self.observations = torch.tanh(self.commands @ mix) + 0.05 * noise
        self.per_episode = length - OBS_STEPS - CHUNK

    def __len__(self):
        return len(self.commands) * self.per_episode

    def __getitems__(self, indices):
        idx = torch.as_tensor(indices)
        episode = (idx // self.per_episode)[:, None]
        start = (idx % self.per_episode)[:, None]
        obs = self.observations[episode, start + torch.arange(OBS_STEPS)]
        act = self.commands[episode, start + OBS_STEPS + torch.arange(CHUNK)]
        return obs, act.flatten(1)


class ChunkPolicy(nn.Module):
    def __init__(self, width=64, depth=2):
        super().__init__()
        self.embed = nn.Linear(OBS_DIM, width)
        self.position = nn.Parameter(0.02 * torch.randn(OBS_STEPS, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, dim_feedforward=2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.mean = nn.Linear(width, CHUNK * N_JOINTS)
        self.raw_std = nn.Linear(width, CHUNK * N_JOINTS)

    def forward(self, obs):
        feature = self.encoder(self.embed(obs) + self.position)[:, -1]
        mean = self.mean(feature)
        std = F.softplus(self.raw_std(feature)) + 0.05
        return MultivariateNormal(mean, torch.diag_embed(std.square()))  # costs time


class BehaviourCloning(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.policy = ChunkPolicy()

    def training_step(self, batch, batch_idx):
        obs, action = batch
        dist = self.policy(obs)
        loss = -dist.log_prob(action).mean()
        self.log("nll", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=5e-4, weight_decay=1e-3, fused=True)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.trainer.estimated_stepping_batches)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def main():
    L.seed_everything(21)
    demos = Demonstrations(n_episodes=240, length=180, seed=4)
    loader = DataLoader(demos, batch_size=64, shuffle=True, drop_last=True, collate_fn=lambda batch: batch)
    trainer = L.Trainer(
        accelerator="cpu",
        max_steps=200,
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=5.0,
    )
    trainer.fit(BehaviourCloning(), loader)


if __name__ == "__main__":
    main()
