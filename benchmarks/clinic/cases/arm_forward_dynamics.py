"""A forward-dynamics network of a robot arm is trained with a Jacobian penalty, and the Jacobian is taken over the
whole batch, so that it also computes the blocks between different samples, which are all zero.
---
expect: [PD341, PD331, PD330]
fix:
  ? |2
            full = jacobian(self.net, probe, create_graph=True)  # costs time
            own = torch.diagonal(full, dim1=0, dim2=2).movedim(-1, 0)
  : |2
            own = jacobian(lambda p: self.net(p).sum(0), probe, create_graph=True).movedim(1, 0)
half: score
"""

import lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.functional import jacobian
from torch.utils.data import DataLoader, TensorDataset

JOINTS, PROBES = 6, 12


def accelerations(state):
    """Toy arm: angles, speeds and torques give the accelerations of the joints."""
    angle, speed, torque = state.split(JOINTS, dim=-1)
    load = 1.5 + 0.5 * torch.cos(angle - angle.roll(1, dims=-1))
    return (torque - 0.3 * speed - torch.sin(angle.cumsum(-1))) / load


def transitions(count):
    gen = torch.Generator().manual_seed(21)
    state = torch.randn(count, 3 * JOINTS, generator=gen)
    return TensorDataset(state, accelerations(state) + 0.02 * torch.randn(count, JOINTS, generator=gen))


class BulkLoader(DataLoader):
    """Reads each batch of a TensorDataset with one indexing operation."""

    def __init__(self, data, batch_size):
        order = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(data), batch_size, drop_last=True)
        super().__init__(data, sampler=order, batch_size=None)


class ArmDynamics(lightning.LightningModule):
    def __init__(self, width=512):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(3 * JOINTS, width),
            nn.SiLU(),
            nn.Linear(width, width),
            nn.SiLU(),
            nn.Linear(width, width),
            nn.SiLU(),
            nn.Linear(width, JOINTS),
        )

    def forward(self, state):
        return self.net(state)

    def roughness(self, state):
        """Frobenius norm of the per-sample Jacobian at a few states of the batch."""
        probe = state[:PROBES]
        full = jacobian(self.net, probe, create_graph=True)  # costs time
        own = torch.diagonal(full, dim1=0, dim2=2).movedim(-1, 0)
        return own.square().sum(dim=(1, 2)).mean()

    def training_step(self, batch, batch_idx):
        state, target = batch
        return F.mse_loss(self(state), target) + 1e-3 * self.roughness(state)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    lightning.seed_everything(2, verbose=False)
    loader = BulkLoader(transitions(34 * 1024), batch_size=1024)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(ArmDynamics(), loader)
