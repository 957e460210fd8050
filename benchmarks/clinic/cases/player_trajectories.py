"""Trains an autoregressive model of soccer players' positions (synthetic tracking data at 10 Hz): it observes two
seconds and rolls out the next three. The recurrent matrix is orthogonal by parametrization, and its Cayley transform
is computed (and differentiated) again in each of the 49 time steps; wrap the sequence in parametrize.cached(), so
that it is computed once per training step.
---
expect: PD328
fix:
  ? |2-
            rollout = self.model(windows[:, :OBSERVED])
  : |2-
            with parametrize.cached():
                rollout = self.model(windows[:, :OBSERVED])
half: tune
"""

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import parametrize  # noqa: F401 - of the fix
from torch.nn.utils.parametrizations import orthogonal
from torch.utils.data import DataLoader, Dataset

OBSERVED = 20
FUTURE = 30
PITCH = torch.tensor([105.0, 68.0])


class TrackingWindows(Dataset):
    """Windows of a player's position in units of the pitch: smooth runs with changes of direction and sprints."""

    def __init__(self, n_windows, seed):
        gen = torch.Generator().manual_seed(seed)
        frames = OBSERVED + FUTURE
        heading = torch.rand(n_windows, 1, generator=gen) * 6.28
        heading = heading + torch.cumsum(0.08 * torch.randn(n_windows, frames, generator=gen), dim=1)
        tempo = 3.0 + 2.0 * torch.sin(torch.rand(n_windows, 1, generator=gen) * 6.28 + torch.arange(frames) / 15)
        velocity = torch.stack([heading.cos(), heading.sin()], dim=-1) * tempo.unsqueeze(-1) * 0.1
        start = torch.rand(n_windows, 1, 2, generator=gen) * PITCH
        self.positions = (start + torch.cumsum(velocity, dim=1)) / PITCH

    def __len__(self):
        return len(self.positions)

    def __getitems__(self, indices):
        return self.positions[torch.as_tensor(indices)]


class TrajectoryModel(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.drive = nn.Linear(4, hidden)
        self.memory = orthogonal(nn.Linear(hidden, hidden, bias=False), orthogonal_map="cayley")
        self.step = nn.Linear(hidden, 2)
        self.hidden = hidden

    def advance(self, position, velocity, state):
        drive = self.drive(torch.cat([position - 0.5, velocity * 100], dim=-1))
        return torch.tanh(drive + self.memory(state))  # costs time

    def forward(self, observed):
        state = observed.new_zeros(len(observed), self.hidden)
        velocity = torch.diff(observed, dim=1)
        for frame in range(1, OBSERVED):
            state = self.advance(observed[:, frame], velocity[:, frame - 1], state)
        position, rollout = observed[:, -1], []
        for _ in range(FUTURE):
            move = self.step(state) * 0.01
            position = position + move
            rollout.append(position)
            state = self.advance(position, move, state)
        return torch.stack(rollout, dim=1)


class TrajectoryForecaster(L.LightningModule):
    def __init__(self, lr=1e-3):
        super().__init__()
        self.lr = lr
        self.model = TrajectoryModel()
        self.register_buffer("pitch", PITCH)

    def error_meters(self, windows):
        rollout = self.model(windows[:, :OBSERVED])
        return (rollout - windows[:, OBSERVED:]) * self.pitch

    def training_step(self, windows, batch_idx):
        error = self.error_meters(windows)
        loss = F.smooth_l1_loss(error, torch.zeros_like(error))
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(windows))
        return loss

    def validation_step(self, windows, batch_idx):
        self.log("final_error_m", self.error_meters(windows)[:, -1].norm(dim=-1).mean(), batch_size=len(windows))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr, fused=True)


def main():
    L.seed_everything(41)
    train = DataLoader(
        TrackingWindows(25600, seed=1), batch_size=64, shuffle=True, drop_last=True, collate_fn=torch.Tensor.contiguous
    )
    val = DataLoader(TrackingWindows(512, seed=2), batch_size=256, collate_fn=torch.Tensor.contiguous)
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        gradient_clip_val=1.0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(TrajectoryForecaster(), train, val)
    print({name: round(float(value), 4) for name, value in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
