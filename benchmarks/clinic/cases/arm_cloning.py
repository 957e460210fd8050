"""Clones demonstrations of a 7-joint robot arm as Gaussian action chunks, with a full covariance matrix for
independent joints.
---
expect: [PD330, PD327]
fix:
  ? |-
    MultivariateNormal(mean, torch.diag_embed(std.square()))
  : |-
    Independent(Normal(mean, std), 1)
half: tune
"""

import lightning
import torch
from torch import nn
from torch.distributions import MultivariateNormal
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

JOINTS, HORIZON, OBSERVATION = 7, 12, 46


class Demonstrations(Dataset):
    """Observations and the chunk of joint velocities that followed, fetched a batch at a time."""

    def __init__(self, observations, chunks):
        self.observations, self.chunks = observations, chunks

    def __len__(self):
        return len(self.observations)

    def __getitem__(self, index):
        return self.observations[index], self.chunks[index]


class ChunkPolicy(lightning.LightningModule):
    """Residual MLP that outputs mean and standard deviation for HORIZON steps of JOINTS velocities."""

    def __init__(self, width=256, blocks=3):
        super().__init__()
        self.encoder = nn.Linear(OBSERVATION, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
            for _ in range(blocks)
        )
        self.head = nn.Linear(width, HORIZON * JOINTS * 2)

    def action_distribution(self, observations):
        hidden = self.encoder(observations)
        for residual in self.blocks:
            hidden = hidden + residual(hidden)
        output = self.head(hidden).view(-1, HORIZON, JOINTS, 2)
        mean, std = output[..., 0], nn.functional.softplus(output[..., 1]) + 0.05
        return MultivariateNormal(mean, torch.diag_embed(std.square()))  # costs time

    def training_step(self, batch, batch_idx):
        observations, chunks = batch
        loss = -self.action_distribution(observations).log_prob(chunks).mean()
        self.log("train_nll", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-4, weight_decay=1e-4, fused=True)


def make_demonstrations(count, seed):
    generator = torch.Generator().manual_seed(seed)
    observations = torch.randn(count, OBSERVATION, generator=generator)
    gain = 0.3 * torch.randn(OBSERVATION, JOINTS, generator=generator)
    first = torch.tanh(observations @ gain)
    decay = 0.9 ** torch.arange(HORIZON)
    chunks = first[:, None, :] * decay[:, None]
    chunks = chunks + 0.1 * torch.randn(count, HORIZON, JOINTS, generator=generator)
    return Demonstrations(observations, chunks)


if __name__ == "__main__":
    lightning.seed_everything(17)
    demonstrations = make_demonstrations(32_000, seed=4)
    sampler = BatchSampler(RandomSampler(demonstrations), batch_size=128, drop_last=True)
    loader = DataLoader(demonstrations, batch_size=None, sampler=sampler)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=3,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(ChunkPolicy(), loader)
