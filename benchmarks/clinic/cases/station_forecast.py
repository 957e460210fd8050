"""Trains a multi-task forecast of five weather variables from the last 48 hours of a station network, with separate
optimizers for the shared encoder and the heads. Every task's loss runs its own backward pass through the whole
shared encoder; add the weighted losses and call manual_backward once, the gradients are the same.
---
expect: PD331
fix:
  ? |2-
            for task, loss in losses.items():
                self.manual_backward(TASK_WEIGHTS[task] * loss, retain_graph=True)  # costs time
  : |2-
            self.manual_backward(sum(TASK_WEIGHTS[task] * loss for task, loss in losses.items()))
half: score
"""

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

HOURS = 48
SENSORS = 12
TASK_WEIGHTS = {"temperature": 1.0, "pressure": 0.5, "humidity": 0.5, "wind": 0.8, "rain": 1.2}


class StationRecords(Dataset):
    """Windows cut out of synthetic hourly records with daily cycles, fronts and measurement noise."""

    def __init__(self, n_windows, seed):
        gen = torch.Generator().manual_seed(seed)
        hours = torch.arange(n_windows + HOURS + 6, dtype=torch.float)
        phase = torch.rand(SENSORS, 1, generator=gen) * 6.28
        cycle = torch.sin(hours * 6.28 / 24 + phase) + 0.5 * torch.sin(hours * 6.28 / 190 + 2 * phase)
        front = torch.cumsum(0.1 * torch.randn(SENSORS, len(hours), generator=gen), dim=1)
        record = cycle + front - front.mean(dim=1, keepdim=True)
        record = record + 0.1 * torch.randn(record.shape, generator=gen)
        self.windows = record.unfold(1, HOURS, 1)[:, :n_windows].transpose(0, 1)
        self.future = record[: len(TASK_WEIGHTS), HOURS + 5 : HOURS + 5 + n_windows].T.contiguous()
        self.future[:, -1].clamp_(min=0)

    def __len__(self):
        return len(self.windows)

    def __getitems__(self, indices):
        indices = torch.as_tensor(indices)
        return self.windows[indices], self.future[indices]


class WindowEncoder(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(SENSORS, width, 5, padding=2),
            nn.GELU(),
            nn.Conv1d(width, width, 5, padding=2),
            nn.GELU(),
            nn.Conv1d(width, width, 5, padding=4, dilation=2),
            nn.GELU(),
        )

    def forward(self, windows):
        return self.layers(windows).mean(dim=-1)


class StationForecaster(L.LightningModule):
    def __init__(self, width=64):
        super().__init__()
        self.automatic_optimization = False
        self.encoder = WindowEncoder(width)
        self.heads = nn.ModuleDict(
            {task: nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, 1)) for task in TASK_WEIGHTS}
        )

    def task_losses(self, batch):
        windows, future = batch
        state = self.encoder(windows)
        predictions = {task: head(state).squeeze(-1) for task, head in self.heads.items()}
        return {task: F.smooth_l1_loss(predictions[task], future[:, i]) for i, task in enumerate(TASK_WEIGHTS)}

    def training_step(self, batch, batch_idx):
        encoder_opt, head_opt = self.optimizers()
        losses = self.task_losses(batch)
        encoder_opt.zero_grad()
        head_opt.zero_grad()
        for task, loss in losses.items():
            self.manual_backward(TASK_WEIGHTS[task] * loss, retain_graph=True)  # costs time
        self.clip_gradients(encoder_opt, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
        encoder_opt.step()
        head_opt.step()
        self.log("train_loss", sum(losses.values()).detach(), on_step=False, on_epoch=True, batch_size=len(batch[0]))

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", sum(self.task_losses(batch).values()), batch_size=len(batch[0]))

    def configure_optimizers(self):
        encoder_opt = torch.optim.AdamW(self.encoder.parameters(), lr=5e-4, weight_decay=0.01, fused=True)
        head_opt = torch.optim.Adam(self.heads.parameters(), lr=2e-3, fused=True)
        return encoder_opt, head_opt


def main():
    L.seed_everything(5)
    train = DataLoader(StationRecords(6400, seed=1), batch_size=64, shuffle=True, drop_last=True, collate_fn=tuple)
    val = DataLoader(StationRecords(256, seed=2), batch_size=128, collate_fn=tuple)
    trainer = L.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(StationForecaster(), train, val)
    print({name: round(float(value), 4) for name, value in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
