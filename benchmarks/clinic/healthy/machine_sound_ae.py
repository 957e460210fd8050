"""A dense autoencoder learns the normal sound of a machine from stacked log-mel frames (as the DCASE anomaly baseline).
---
half: score
"""

import itertools

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

MELS, FRAMES, RATE, N_FFT, HOP = 128, 5, 16000, 1024, 512


def mel_filters():
    def to_mel(f):
        return 2595 * torch.log10(1 + f / 700)

    freqs = torch.linspace(0, RATE / 2, N_FFT // 2 + 1)
    edges = torch.linspace(0, float(to_mel(torch.tensor(RATE / 2))), MELS + 2)
    mel = to_mel(freqs)
    rising = (mel[None] - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - mel[None]) / (edges[2:] - edges[1:-1])[:, None]
    return torch.minimum(rising, falling).clamp(min=0)


def record_machines(n_clips, seconds, generator, fault=False):
    """Fans: harmonics of the rotation speed, slow load changes and air noise; a fault adds clicks."""
    t = torch.arange(seconds * RATE) / RATE
    speed = 45 + 10 * torch.rand(n_clips, 1, generator=generator)
    load = 1 + 0.02 * torch.sin(2 * torch.pi * 0.3 * t + 6.28 * torch.rand(n_clips, 1, generator=generator))
    phase = torch.cumsum(speed * load / RATE, dim=1) * 2 * torch.pi
    sound = sum(torch.sin(k * phase) / k for k in (1, 2, 3, 6, 7, 12))
    sound = sound + 0.2 * torch.randn(n_clips, len(t), generator=generator)
    if fault:
        sound = sound + 2.0 * (torch.rand(sound.shape, generator=generator) < 0.002)
    return sound


def log_mel_vectors(sound, filters):
    spec = torch.stft(sound, N_FFT, HOP, window=torch.hann_window(N_FFT), return_complex=True).abs().square()
    mel = torch.log(filters @ spec + 1e-6)
    return mel.unfold(2, FRAMES, 1).permute(0, 2, 3, 1).reshape(-1, FRAMES * MELS)


class FrameVectors(Dataset):
    """Precomputed feature vectors; one item is a whole batch of rows."""

    def __init__(self, vectors):
        self.vectors = vectors

    def __len__(self):
        return len(self.vectors)

    def __getitem__(self, rows):
        return self.vectors[rows]


def make_loader(vectors, batch_size, shuffle):
    dataset = FrameVectors(vectors)
    order = RandomSampler(dataset) if shuffle else range(len(dataset))
    return DataLoader(dataset, sampler=BatchSampler(order, batch_size, drop_last=shuffle), batch_size=None)


class SoundAutoencoder(L.LightningModule):
    def __init__(self, width=512, bottleneck=16, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        sizes = [FRAMES * MELS, width, width, width, bottleneck, width, width, width]
        layers = []
        for a, b in itertools.pairwise(sizes):
            layers += [nn.Linear(a, b), nn.ReLU(inplace=True)]
        self.net = nn.Sequential(*layers, nn.Linear(width, FRAMES * MELS))

    def forward(self, x):
        return self.net(x)

    def training_step(self, x, batch_idx):
        loss = F.mse_loss(self(x), x)
        self.log("train_mse", loss)
        return loss

    def validation_step(self, x, batch_idx, dataloader_idx=0):
        self.log("val_mse", F.mse_loss(self(x), x), batch_size=len(x))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr, fused=True)


def main():
    L.seed_everything(9)
    g = torch.Generator().manual_seed(9)
    filters = mel_filters()
    train = torch.cat([log_mel_vectors(record_machines(16, 10, g), filters) for _ in range(10)])
    mean, std = train.mean(0), train.std(0)
    normal = log_mel_vectors(record_machines(4, 10, g), filters)
    faulty = log_mel_vectors(record_machines(4, 10, g, fault=True), filters)
    normal, faulty, train = ((v - mean) / std for v in (normal, faulty, train))
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=4,
        precision="bf16-mixed",
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(
        SoundAutoencoder(),
        make_loader(train, 512, True),
        [make_loader(normal, 1024, False), make_loader(faulty, 1024, False)],
    )
    print({k: round(float(v), 3) for k, v in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
