"""A small keyword-spotting network is trained on raw audio made reverberant with room impulse responses. The
augmentation convolves with the long responses in the time domain (grouped conv1d) instead of through the FFT.
---
expect: PD335
fix:
  ? "        padded = F.pad(wave, (taps - 1, 0)).unsqueeze(0)"
  : "        n = 1 << (wave.shape[-1] + taps - 2).bit_length()"
  ? "        wet = F.conv1d(padded, rir.flip(-1).unsqueeze(1), groups=len(wave))[0]  # costs time"
  : "        wet = torch.fft.irfft(torch.fft.rfft(wave, n) * torch.fft.rfft(rir, n), n)[:, : wave.shape[-1]]"
half: tune
"""

import itertools

import lightning as L
import torch
import torch.nn.functional as F
import torchmetrics
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

RATE, CLIP, CLASSES = 8000, 8000, 12


def synth_keywords(n, generator):
    labels = torch.randint(CLASSES, (n,), generator=generator)
    t = torch.arange(CLIP) / RATE
    f0 = 180.0 + 90.0 * labels[:, None] + 15 * torch.randn(n, 1, generator=generator)
    sweep = (labels[:, None] % 4 - 1.5) * 200
    onset = 0.3 * torch.rand(n, 1, generator=generator)
    envelope = torch.exp(-(((t - onset - 0.3) / 0.15) ** 2))
    wave = envelope * torch.sin(2 * torch.pi * (f0 * t + sweep * t**2))
    return wave + 0.05 * torch.randn(n, CLIP, generator=generator), labels


class RoomReverb(nn.Module):
    """Random room impulse responses: decaying noise behind a direct path, mixed wet/dry."""

    def __init__(self, taps=2400, n_rooms=200, p=0.8):
        super().__init__()
        rt60 = 0.1 + 0.3 * torch.rand(n_rooms, 1)
        t = torch.arange(taps) / RATE
        rirs = torch.randn(n_rooms, taps) * torch.exp(-6.9 * t / rt60) * 0.05
        rirs[:, 0] = 1.0
        self.p = p
        self.register_buffer("rirs", rirs / rirs.norm(dim=1, keepdim=True))

    @torch.no_grad()
    def forward(self, wave):
        rir = self.rirs[torch.randint(len(self.rirs), (len(wave),))]
        taps = rir.shape[-1]
        padded = F.pad(wave, (taps - 1, 0)).unsqueeze(0)
        wet = F.conv1d(padded, rir.flip(-1).unsqueeze(1), groups=len(wave))[0]  # costs time
        keep = (torch.rand(len(wave), 1) < self.p).float()
        return keep * wet + (1 - keep) * wave


class KeywordNet(L.LightningModule):
    def __init__(self, channels=64, lr=2e-3):
        super().__init__()
        self.save_hyperparameters()
        self.reverb = RoomReverb()
        self.register_buffer("window", torch.hann_window(256), persistent=False)
        widths = [129, channels, channels, 2 * channels, 2 * channels]
        layers = []
        for i, (a, b) in enumerate(itertools.pairwise(widths)):
            layers += [nn.Conv1d(a, b, 5, stride=1 + i % 2, padding=2, bias=False), nn.BatchNorm1d(b), nn.ReLU()]
        self.net = nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(widths[-1], CLASSES))
        self.val_acc = torchmetrics.classification.MulticlassAccuracy(CLASSES)

    def forward(self, wave):
        spec = torch.stft(wave, 256, hop_length=128, window=self.window, return_complex=True)
        return self.net(torch.log1p(spec.abs()))

    def training_step(self, batch, batch_idx):
        wave, label = batch
        loss = F.cross_entropy(self(self.reverb(wave)), label, label_smoothing=0.05)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        wave, label = batch
        self.val_acc(self(wave), label)
        self.log("val_acc", self.val_acc, on_epoch=True, prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=1e-3)


def main():
    L.seed_everything(3)
    g = torch.Generator().manual_seed(3)
    train = TensorDataset(*synth_keywords(3200, g))
    val = TensorDataset(*synth_keywords(320, g))
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=4, logger=False, enable_checkpointing=False, enable_model_summary=False
    )
    trainer.fit(KeywordNet(), DataLoader(train, batch_size=32, shuffle=True), DataLoader(val, batch_size=64))
    print("val acc", float(trainer.callback_metrics["val_acc"]))


if __name__ == "__main__":
    main()
