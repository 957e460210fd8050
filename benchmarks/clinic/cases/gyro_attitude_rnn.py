"""An orthogonal recurrent network integrates gyroscope readings of a tumbling satellite into its attitude. The
recurrent weight is a parametrised (orthogonal) one that is built again at every time step of the sequence.
---
expect: PD328
fix:
  ? |2-
            for t in range(x.shape[1]):
                h = self.modrelu(drive[:, t] + self.recurrent(h))  # costs time
                states.append(h)
  : |2-
            with parametrize.cached():
                for t in range(x.shape[1]):
                    h = self.modrelu(drive[:, t] + self.recurrent(h))
                    states.append(h)
  "from torch.nn.utils import parametrizations": "from torch.nn.utils import parametrizations, parametrize"
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.data import DataLoader, TensorDataset


def multiply(a, b):
    """Product of quaternions (w, x, y, z) in the last dimension."""
    aw, av, bw, bv = a[:, :1], a[:, 1:], b[:, :1], b[:, 1:]
    w = aw * bw - (av * bv).sum(1, keepdim=True)
    v = aw * bv + bw * av + torch.linalg.cross(av, bv)
    return torch.cat([w, v], dim=1)


def make_flights(n, length, dt=0.1):
    """Torque-free rotation of a rigid body; noisy angular rates in, attitude quaternions out."""
    inertia = torch.tensor([1.0, 1.6, 2.1])
    omega = torch.randn(n, 3)
    attitude = F.normalize(torch.randn(n, 4), dim=1)
    start, rates, attitudes = attitude, [], []
    for _ in range(length):
        omega = omega - dt * torch.linalg.cross(omega, inertia * omega) / inertia
        half = torch.cat([torch.ones(n, 1), 0.5 * dt * omega], dim=1)
        attitude = F.normalize(multiply(attitude, half), dim=1)
        rates.append(omega + 0.02 * torch.randn(n, 3))
        attitudes.append(attitude)
    return start, torch.stack(rates, dim=1), torch.stack(attitudes, dim=1)


class AttitudeRNN(L.LightningModule):
    def __init__(self, hidden=96):
        super().__init__()
        self.initial = nn.Linear(4, hidden)
        self.drive = nn.Linear(3, hidden)
        self.recurrent = parametrizations.orthogonal(nn.Linear(hidden, hidden, bias=False), orthogonal_map="cayley")
        self.threshold = nn.Parameter(torch.zeros(hidden))
        self.head = nn.Sequential(nn.Linear(hidden, 192), nn.GELU(), nn.Linear(192, 4))

    def modrelu(self, z):
        return torch.relu(z.abs() + self.threshold) * z.sign()

    def forward(self, start, x):
        drive = self.drive(x)
        h = self.initial(start)
        states = []
        for t in range(x.shape[1]):
            h = self.modrelu(drive[:, t] + self.recurrent(h))  # costs time
            states.append(h)
        return F.normalize(self.head(torch.stack(states, dim=1)), dim=-1)

    def step(self, batch):
        start, rates, target = batch
        predicted = self(start, rates)
        return (1 - (predicted * target).sum(-1).square()).mean()

    def training_step(self, batch, batch_idx):
        loss = self.step(batch)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.step(batch))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


def main():
    L.seed_everything(3)
    start, rates, attitudes = make_flights(4224, 24)
    train = TensorDataset(start[:3840], rates[:3840], attitudes[:3840])
    val = TensorDataset(start[3840:], rates[3840:], attitudes[3840:])
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=3,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(
        AttitudeRNN(),
        DataLoader(train, batch_size=64, shuffle=True, drop_last=True),
        DataLoader(val, batch_size=384),
    )


if __name__ == "__main__":
    main()
