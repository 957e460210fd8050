"""Multi-label tagging of music clips: a log-mel front end inside the model, followed by a small CNN. The triangular mel
filters are built again in every forward pass.
---
expect: [PD511, PD327]
half: score
fix:
  ? 'self.register_buffer("window", torch.hann_window(N_FFT), persistent=False)'
  : |-
    self.register_buffer("window", torch.hann_window(N_FFT), persistent=False)
            self.register_buffer("filters", mel_filterbank(), persistent=False)
  ? 'filters = mel_filterbank().to(power.device)'
  : 'filters = self.filters'
"""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

SAMPLE_RATE, N_FFT, HOP, N_MELS, TAGS = 16_000, 1024, 512, 96, 20
CLIPS, CLIP_SAMPLES, BATCH = 640, 16_000, 16


def hz_to_mel(hz: float) -> float:
    return float(2595.0 * torch.log10(torch.tensor(1.0 + hz / 700.0)))


def mel_filterbank() -> Tensor:
    """Triangular filters on the mel scale, (n_mels, n_fft // 2 + 1)."""
    mels = torch.linspace(hz_to_mel(30.0), hz_to_mel(SAMPLE_RATE / 2), N_MELS + 2)
    edges = (700.0 * (10.0 ** (mels / 2595.0) - 1.0)).tolist()
    bins = torch.linspace(0.0, SAMPLE_RATE / 2, N_FFT // 2 + 1).tolist()
    rows = []
    for low, center, high in zip(edges[:-2], edges[1:-1], edges[2:], strict=True):
        rows.append([max(0.0, min((hz - low) / (center - low), (high - hz) / (high - center))) for hz in bins])
    return torch.tensor(rows)


def make_clips() -> TensorDataset:
    """Each tag adds a pair of tones to the clip."""
    generator = torch.Generator().manual_seed(31)
    tags = (torch.rand(CLIPS, TAGS, generator=generator) < 0.15).float()
    pitches = torch.rand(TAGS, 2, generator=generator) * 3000 + 80
    time = torch.arange(CLIP_SAMPLES) / SAMPLE_RATE
    tones = torch.sin(2 * torch.pi * pitches[:, :, None] * time).sum(1)
    clips = tags @ tones * 0.1 + torch.randn(CLIPS, CLIP_SAMPLES, generator=generator) * 0.05
    return TensorDataset(clips, tags)


class LogMel(nn.Module):
    """Waveform to log-mel spectrogram."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(N_FFT), persistent=False)

    @torch.no_grad()
    def forward(self, waveform: Tensor) -> Tensor:
        spectrum = torch.stft(waveform, N_FFT, HOP, window=self.window, return_complex=True)
        power = spectrum.real.square() + spectrum.imag.square()
        filters = mel_filterbank().to(power.device)  # costs time
        return torch.log1p(filters @ power * 100.0)


class MusicTagger(LightningModule):
    """Log-mel front end and three convolutions over time."""

    def __init__(self, width: int = 96, lr: float = 2e-3) -> None:
        super().__init__()
        self.lr = lr
        self.frontend = LogMel()
        self.encoder = nn.Sequential(
            nn.Conv1d(N_MELS, width, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv1d(width, width, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv1d(width, width, 3, padding=1),
            nn.ReLU(inplace=True),
        )
        self.head = nn.Linear(width, TAGS)

    def forward(self, waveform: Tensor) -> Tensor:
        return self.head(self.encoder(self.frontend(waveform)).mean(-1))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        waveform, tags = batch
        return F.binary_cross_entropy_with_logits(self(waveform), tags)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr, fused=True)


def main() -> None:
    seed_everything(31)
    dataset = make_clips()
    loader = DataLoader(dataset, sampler=BatchSampler(RandomSampler(dataset), BATCH, drop_last=True), batch_size=None)
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=6,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(MusicTagger(), loader)


if __name__ == "__main__":
    main()
