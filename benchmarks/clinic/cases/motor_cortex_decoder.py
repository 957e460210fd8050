"""Decodes hand velocity from binned motor cortex spike counts with an orthogonal recurrent network. The recurrent
layer carries an orthogonal parametrization and is called in each time bin, so the orthogonal matrix is built again from
its free parameters (and differentiated) 32 times per step.
---
expect: PD328
fix:
  ? |-
    for drive in self.encode(spikes).unbind(1):
                h = self.activation(drive + self.recurrent(h))  # costs time
  : |-
    weight = self.recurrent.weight
            for drive in self.encode(spikes).unbind(1):
                h = self.activation(drive + F.linear(h, weight))
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import orthogonal
from torch.utils.data import DataLoader, TensorDataset

N_UNITS, N_BINS, HIDDEN = 128, 32, 64


def simulate_session(n_trials, seed):
    """Cosine-tuned units following smooth reaches, counts in 20 ms bins."""
    gen = torch.Generator().manual_seed(seed)
    accel = torch.randn(n_trials, N_BINS, 2, generator=gen)
    velocity = torch.zeros(n_trials, N_BINS, 2)
    current = torch.zeros(n_trials, 2)
    for b in range(N_BINS):
        current = 0.85 * current + 0.5 * accel[:, b]
        velocity[:, b] = current
    tuning = torch.randn(2, N_UNITS, generator=torch.Generator().manual_seed(99))
    rates = torch.exp(0.5 * velocity @ tuning - 0.4).clamp_(max=8.0)
    return torch.poisson(rates, generator=gen), velocity


class ModReLU(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.bias = nn.Parameter(torch.full((size,), -0.01))

    def forward(self, x):
        return torch.sign(x) * F.relu(x.abs() + self.bias)


class OrthogonalRNN(nn.Module):
    def __init__(self, n_in, hidden, n_out):
        super().__init__()
        self.encode = nn.Linear(n_in, hidden)
        self.recurrent = orthogonal(nn.Linear(hidden, hidden, bias=False))
        self.activation = ModReLU(hidden)
        self.readout = nn.Linear(hidden, n_out)

    def forward(self, spikes):
        h = spikes.new_zeros(spikes.shape[0], HIDDEN)
        states = []
        for drive in self.encode(spikes).unbind(1):
            h = self.activation(drive + self.recurrent(h))  # costs time
            states.append(h)
        return self.readout(torch.stack(states, 1))


class VelocityDecoder(L.LightningModule):
    def __init__(self, lr=1e-3):
        super().__init__()
        self.lr = lr
        self.net = OrthogonalRNN(N_UNITS, HIDDEN, 2)

    def training_step(self, batch, batch_idx):
        spikes, velocity = batch
        loss = F.mse_loss(self.net(spikes), velocity)
        self.log("train_mse", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        spikes, velocity = batch
        self.log("val_mse", F.mse_loss(self.net(spikes), velocity), batch_size=len(spikes))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr, fused=True)


def main():
    L.seed_everything(7)
    train = TensorDataset(*simulate_session(5120, seed=1))
    val = TensorDataset(*simulate_session(512, seed=2))
    train_loader = DataLoader(train, batch_size=128, shuffle=True, drop_last=True)
    val_loader = DataLoader(val, batch_size=512)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=1.0,
        num_sanity_val_steps=0,
    )
    trainer.fit(VelocityDecoder(), train_loader, val_loader)


if __name__ == "__main__":
    main()
