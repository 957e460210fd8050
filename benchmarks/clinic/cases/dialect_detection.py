"""Tells eight dialects apart from frames of speech, and aligns studio and phone recordings by a kernel distance.
The kernel distance subtracts every embedding from every other one, in a tensor of the size batch x batch x features.
---
expect: PD326
fix:
  "spread = both.unsqueeze(0) - both.unsqueeze(1)": |2-
    squares = both.pow(2).sum(-1)
            gram = both @ both.T
  "distance = spread.pow(2).sum(-1)  # costs time": |2-
    distance = (squares[:, None] + squares[None, :] - 2 * gram).clamp(min=0)
half: score
"""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

DIALECTS = 8
FRAMES = 48
BANDS = 40


def record(count: int, voices: torch.Tensor, channel: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Frames of filter bank energies: the dialect's melody, a speaker's offset, the channel's tilt and noise."""
    dialects = torch.randint(DIALECTS, (count,))
    phase = 2 * torch.pi * torch.rand(count, 1, 1)
    time = torch.arange(FRAMES).view(1, 1, -1) / FRAMES
    melody = torch.sin(2 * torch.pi * (2 + dialects.view(-1, 1, 1)) * time + phase)
    sound = voices[dialects].unsqueeze(2) * (1 + 0.5 * melody)
    sound = sound * channel.view(1, -1, 1) + 0.5 * torch.randn(count, BANDS, 1)
    return sound + 1.2 * torch.randn(count, BANDS, FRAMES), dialects


class KernelDistance(nn.Module):
    """Squared maximum mean discrepancy with a family of Gaussian kernels around the mean distance."""

    def __init__(self, kernels: int = 5, factor: float = 2.0):
        super().__init__()
        self.widths = [factor ** (i - kernels // 2) for i in range(kernels)]

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        both = torch.cat([source, target])
        spread = both.unsqueeze(0) - both.unsqueeze(1)  # costs time
        distance = spread.pow(2).sum(-1)  # costs time
        count, half = len(both), len(source)
        base = distance.detach().sum() / (count * count - count)
        kernel = sum(torch.exp(-distance / (base * width)) for width in self.widths)
        return kernel[:half, :half].mean() + kernel[half:, half:].mean() - 2 * kernel[:half, half:].mean()


class DialectNet(L.LightningModule):
    def __init__(self, features: int = 256):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv1d(BANDS, 48, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv1d(48, 64, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(4),
            nn.Flatten(),
            nn.Linear(256, features),
            nn.Tanh(),
        )
        self.head = nn.Linear(features, DIALECTS)
        self.alignment = KernelDistance()

    def training_step(self, batch, batch_idx):
        studio, dialects, phone = batch
        source, target = self.encoder(torch.cat([studio, phone])).chunk(2)
        loss_class = nn.functional.cross_entropy(self.head(source), dialects)
        loss_align = self.alignment(source, target)
        self.log_dict({"class": loss_class, "align": loss_align}, on_step=False, on_epoch=True)
        return loss_class + 0.5 * loss_align

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


def main():
    L.seed_everything(23)
    voices = torch.randn(DIALECTS, BANDS)
    studio, dialects = record(3200, voices, torch.ones(BANDS))
    phone, _ = record(3200, voices, torch.linspace(1.4, 0.3, BANDS))
    loader = DataLoader(TensorDataset(studio, dialects, phone), batch_size=64, shuffle=True, drop_last=True)
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=7, logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(DialectNet(), loader)
    print({name: round(value.item(), 4) for name, value in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
