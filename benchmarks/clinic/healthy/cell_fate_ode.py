"""Fits a neural ordinary differential equation to gene expression of differentiating cells: the state is carried from
one sampling time to the next with fixed Runge-Kutta steps, and compared at each of them.
---
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

N_GENES, N_TIMES = 320, 5


def simulate_lineages(n_cells, seed):
    """Integrates a random sparse regulatory network from noisy progenitor states."""
    gen = torch.Generator().manual_seed(seed)
    network = torch.randn(N_GENES, N_GENES, generator=gen) * (torch.rand(N_GENES, N_GENES, generator=gen) < 0.05)
    state = torch.randn(n_cells, N_GENES, generator=gen) * 0.5
    snapshots = [state]
    for _ in range(N_TIMES - 1):
        for _ in range(4):
            state = state + 0.1 * (torch.tanh(state @ network.T) - 0.5 * state)
        snapshots.append(state + 0.02 * torch.randn(state.shape, generator=gen))
    return torch.stack(snapshots, 1)


class Regulation(nn.Module):
    """Time derivative of the expression vector: production by a small network, linear decay per gene."""

    def __init__(self, hidden=320):
        super().__init__()
        self.sense = nn.Linear(N_GENES, hidden)
        self.produce = nn.Linear(hidden, N_GENES, bias=False)
        self.log_decay = nn.Parameter(torch.full((N_GENES,), -0.7))
        nn.init.normal_(self.produce.weight, std=0.01)

    def forward(self, x, decay):
        return torch.addcmul(self.produce(torch.tanh(self.sense(x))), decay, x, value=-1)


def rk4_step(field, x, decay, dt):
    k1 = field(x, decay)
    k2 = field(torch.add(x, k1, alpha=dt / 2), decay)
    k3 = field(torch.add(x, k2, alpha=dt / 2), decay)
    k4 = field(torch.add(x, k3, alpha=dt), decay)
    return torch.add(x, torch.add(k1 + k4, k2 + k3, alpha=2), alpha=dt / 6)


class CellFateODE(L.LightningModule):
    def __init__(self, lr=2e-3):
        super().__init__()
        self.lr = lr
        self.field = Regulation()

    def forward(self, x):
        decay = self.field.log_decay.exp()
        states = []
        for _ in range(N_TIMES - 1):
            x = rk4_step(self.field, x, decay, dt=0.4)
            states.append(x)
        return torch.stack(states, 1)

    def training_step(self, batch, batch_idx):
        (trajectory,) = batch
        loss = F.mse_loss(self(trajectory[:, 0]), trajectory[:, 1:])
        self.log("train_mse", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.lr, fused=True)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
        return [optimizer], [scheduler]


def main():
    L.seed_everything(41)
    cells = simulate_lineages(4800, seed=9)
    loader = DataLoader(TensorDataset(cells), batch_size=96, shuffle=True, drop_last=True)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=1.0,
    )
    trainer.fit(CellFateODE(), loader)


if __name__ == "__main__":
    main()
