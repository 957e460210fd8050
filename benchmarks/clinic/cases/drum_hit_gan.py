"""Trains a small adversarial generator of one-shot drum samples (waveforms of 2048 samples) with manual optimization.
The discriminator's loss is computed on generated audio that is still attached to the generator's graph, so each
discriminator step also runs the generator's backward, whose gradients are then thrown away.
---
expect: PD323
fix:
  "fake = self.generator(self.latent(len(real)))": "fake = self.generator(self.latent(len(real))).detach()"
half: score
"""

import itertools

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

N_SAMPLES, LATENT, N_CRITIC = 2048, 64, 2


def synth_drums(n, seed):
    """Decaying sweeps with a noise burst: kicks, toms and snares."""
    gen = torch.Generator().manual_seed(seed)
    t = torch.linspace(0, 0.125, N_SAMPLES)
    f0 = torch.rand(n, 1, generator=gen) * 180 + 50
    sweep = torch.rand(n, 1, generator=gen) * 20 + 5
    decay = torch.rand(n, 1, generator=gen) * 25 + 10
    snap = torch.rand(n, 1, generator=gen)
    phase = 6.2832 * f0 * (t + (1 - torch.exp(-sweep * t)) / sweep)
    noise = torch.randn(n, N_SAMPLES, generator=gen) * torch.exp(-60 * t)
    audio = torch.sin(phase) * torch.exp(-decay * t) + snap * noise
    return (audio / audio.abs().amax(1, keepdim=True)).unsqueeze(1)


def up(c_in, c_out):
    return nn.Sequential(
        nn.ConvTranspose1d(c_in, c_out, 16, stride=4, padding=6),
        nn.LeakyReLU(0.2),
        nn.Conv1d(c_out, c_out, 9, padding=4),
        nn.LeakyReLU(0.2),
    )


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(LATENT, 64 * 8)
        self.blocks = nn.Sequential(up(64, 48), up(48, 32), up(32, 16), up(16, 12))
        self.out = nn.Conv1d(12, 1, 9, padding=4)

    def forward(self, z):
        x = self.stem(z).view(-1, 64, 8)
        return torch.tanh(self.out(self.blocks(x)))


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        layers, channels = [], [1, 12, 24, 32, 48, 48]
        for c_in, c_out in itertools.pairwise(channels):
            layers += [nn.Conv1d(c_in, c_out, 16, stride=4, padding=6), nn.LeakyReLU(0.2)]
        self.features = nn.Sequential(*layers)
        self.score = nn.Linear(48 * 2, 1)

    def forward(self, audio):
        return self.score(self.features(audio).flatten(1))


class DrumGAN(L.LightningModule):
    def __init__(self, lr=2e-4):
        super().__init__()
        self.automatic_optimization = False
        self.lr = lr
        self.generator = Generator()
        self.discriminator = Discriminator()

    def latent(self, n):
        return torch.randn(n, LATENT, device=self.device)

    def training_step(self, batch, batch_idx):
        (real,) = batch
        opt_g, opt_d = self.optimizers()

        self.discriminator.requires_grad_(True)
        for _ in range(N_CRITIC):
            fake = self.generator(self.latent(len(real)))
            d_loss = F.softplus(-self.discriminator(real)).mean() + F.softplus(self.discriminator(fake)).mean()
            opt_d.zero_grad()
            self.manual_backward(d_loss)
            opt_d.step()

        self.discriminator.requires_grad_(False)
        g_loss = F.softplus(-self.discriminator(self.generator(self.latent(len(real))))).mean()
        opt_g.zero_grad()
        self.manual_backward(g_loss)
        opt_g.step()
        self.log_dict({"d_loss": d_loss, "g_loss": g_loss})

    def configure_optimizers(self):
        opt_g = torch.optim.Adam(self.generator.parameters(), lr=self.lr, betas=(0.5, 0.9), fused=True)
        opt_d = torch.optim.Adam(self.discriminator.parameters(), lr=self.lr / 4, betas=(0.5, 0.9), fused=True)
        return opt_g, opt_d


def main():
    L.seed_everything(13)
    loader = DataLoader(TensorDataset(synth_drums(600, seed=6)), batch_size=4, shuffle=True, drop_last=True)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(DrumGAN(), loader)


if __name__ == "__main__":
    main()
