"""Trains a small adversarial vocoder that turns mel-like frames into waveforms, with manual optimization.
The discriminator loss is taken on fakes that are not detached, so its backward pass also runs through the generator.
---
expect: PD323
half: score
fix:
  ? "self.discriminator(fake)  # costs time"
  : "self.discriminator(fake.detach())"
  ? "self.manual_backward(d_loss, retain_graph=True)  # costs time"
  : "self.manual_backward(d_loss)"
"""

import math

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

FRAMES = 32
BANDS = 40
HOP = 64


class VoicedFrames(Dataset[tuple[Tensor, Tensor]]):
    """Harmonic waveforms, and log energies of their spectrogram frames as conditioning features."""

    def __init__(self, size: int) -> None:
        generator = torch.Generator().manual_seed(8)
        time = torch.arange(FRAMES * HOP) / 8000.0
        pitch = 90.0 + 160.0 * torch.rand(size, 1, generator=generator)
        harmonics = [torch.sin(2 * math.pi * k * pitch * time) / k for k in range(1, 5)]
        self.audio = (0.3 * sum(harmonics) + 0.01 * torch.randn(size, FRAMES * HOP, generator=generator)).unsqueeze(1)
        frames = self.audio.view(size, FRAMES, HOP)
        spectrum = torch.fft.rfft(frames, n=2 * BANDS - 2).abs()
        self.mel = spectrum.clamp_min(1e-4).log().transpose(1, 2).contiguous()

    def __len__(self) -> int:
        return len(self.audio)

    def __getitem__(self, index: list[int]) -> tuple[Tensor, Tensor]:
        rows = torch.tensor(index)
        return self.mel[rows], self.audio[rows]


class Residual(nn.Module):
    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, 3, padding=dilation, dilation=dilation)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(F.leaky_relu(x, 0.1))


class Generator(nn.Module):
    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(BANDS, width, 7, padding=3),
            nn.ConvTranspose1d(width, width // 2, 16, stride=8, padding=4),
            Residual(width // 2, 1),
            Residual(width // 2, 3),
            nn.ConvTranspose1d(width // 2, width // 4, 16, stride=8, padding=4),
            Residual(width // 4, 1),
            Residual(width // 4, 3),
            Residual(width // 4, 9),
            nn.Conv1d(width // 4, 1, 7, padding=3),
            nn.Tanh(),
        )

    def forward(self, mel: Tensor) -> Tensor:
        return self.net(mel)


class Discriminator(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(1, width, 15, stride=4, padding=7),
            nn.LeakyReLU(0.2),
            nn.Conv1d(width, 2 * width, 15, stride=4, padding=7),
            nn.LeakyReLU(0.2),
            nn.Conv1d(2 * width, 1, 3, padding=1),
        )

    def forward(self, audio: Tensor) -> Tensor:
        return self.net(audio)


class VocoderGAN(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator = Generator()
        self.discriminator = Discriminator()

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        mel, audio = batch
        opt_g, opt_d = self.optimizers()
        fake = self.generator(mel)

        real_score = self.discriminator(audio)
        fake_score = self.discriminator(fake)  # costs time
        d_loss = (real_score - 1).square().mean() + fake_score.square().mean()
        opt_d.zero_grad()
        self.manual_backward(d_loss, retain_graph=True)  # costs time
        opt_d.step()

        self.toggle_optimizer(opt_g)
        g_loss = (self.discriminator(fake) - 1).square().mean() + 10.0 * F.l1_loss(fake, audio)
        opt_g.zero_grad()
        self.manual_backward(g_loss)
        opt_g.step()
        self.untoggle_optimizer(opt_g)
        self.log_dict({"loss/discriminator": d_loss, "loss/generator": g_loss})

    def configure_optimizers(self) -> tuple[list[torch.optim.Optimizer], list]:
        opt_g = torch.optim.AdamW(self.generator.parameters(), lr=2e-4, betas=(0.8, 0.99), fused=True)
        opt_d = torch.optim.AdamW(self.discriminator.parameters(), lr=2e-4, betas=(0.8, 0.99), fused=True)
        return [opt_g, opt_d], []


def main() -> None:
    L.seed_everything(4)
    clips = VoicedFrames(size=960)
    loader = DataLoader(clips, sampler=BatchSampler(RandomSampler(clips), 12, drop_last=True), batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(VocoderGAN(), loader)


if __name__ == "__main__":
    main()
