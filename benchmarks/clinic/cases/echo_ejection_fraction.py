"""Estimates the ejection fraction of the heart from the ventricle's outline over an echo clip with a deep residual
network over time. The norm of every parameter's gradient is logged on each step.
---
expect: [PD502, PD504, PD507]
fix:
  'norms = grad_norm(self, norm_type=2)': |2-
    if (self.global_step + 1) % self.trainer.log_every_n_steps:
                return
            norms = grad_norm(self, norm_type=2)
  'self.log_dict(norms)  # costs time': 'self.log_dict(norms)'
half: score
"""

import tempfile

import lightning as L
import torch
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import grad_norm
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

POINTS, FRAMES = 24, 64


def echo_clips(clips, seed):
    """Outlines of a ventricle that shrinks and widens with the beat."""
    gen = torch.Generator().manual_seed(seed)
    fraction = 0.25 + 0.45 * torch.rand(clips, generator=gen)
    rate = 1.5 + 2.0 * torch.rand(clips, 1, generator=gen)
    time = torch.linspace(0, 2 * torch.pi, FRAMES)
    beat = 0.5 - 0.5 * torch.cos(rate * time + 6.0 * torch.rand(clips, 1, generator=gen))
    radius = (1 - fraction[:, None] * beat).clamp(min=0.05).pow(1 / 3)
    shape = 1 + 0.2 * torch.randn(clips, POINTS, 1, generator=gen)
    outline = shape * radius[:, None, :] + 0.03 * torch.randn(clips, POINTS, FRAMES, generator=gen)
    return outline - 0.9, fraction


class TemporalBlock(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.body = nn.Sequential(
            nn.GroupNorm(4, width),
            nn.SiLU(),
            nn.Conv1d(width, width, 3, padding=dilation, dilation=dilation),
            nn.GroupNorm(4, width),
            nn.SiLU(),
            nn.Conv1d(width, width, 1),
        )

    def forward(self, x):
        return x + self.body(x)


class EjectionNet(L.LightningModule):
    def __init__(self, width=24, blocks=12, lr=1e-3):
        super().__init__()
        self.lr = lr
        self.stem = nn.Conv1d(POINTS, width, 5, padding=2)
        self.blocks = nn.Sequential(*(TemporalBlock(width, dilation=2 ** (i % 4)) for i in range(blocks)))
        self.head = nn.Linear(2 * width, 1)

    def forward(self, outline):
        h = self.blocks(self.stem(outline))
        return torch.sigmoid(self.head(torch.cat([h.mean(dim=2), h.amax(dim=2)], dim=1))).squeeze(1)

    def training_step(self, batch, batch_idx):
        outline, fraction = batch
        loss = nn.functional.smooth_l1_loss(self(outline), fraction, beta=0.05)
        self.log("train_loss", loss, batch_size=len(fraction))
        return loss

    def on_before_optimizer_step(self, optimizer):
        norms = grad_norm(self, norm_type=2)
        self.log_dict(norms)  # costs time

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr, fused=True)


def main():
    L.seed_everything(17)
    train = DataLoader(TensorDataset(*echo_clips(1280, seed=9)), batch_size=16, shuffle=True)
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            accelerator="cpu",
            max_epochs=2,
            logger=CSVLogger(folder, name="echo"),
            log_every_n_steps=50,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(EjectionNet(), train)
        print("train_loss", round(float(trainer.callback_metrics["train_loss"]), 4))


if __name__ == "__main__":
    main()
