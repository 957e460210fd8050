"""A convolutional GAN with hinge loss learns to generate small gray textures, with manual optimization.
---
half: score
"""

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

LATENT = 48
SIZE = 32


def weave_textures(count):
    gen = torch.Generator().manual_seed(13)
    axis = torch.arange(SIZE).float()
    freq, phase = torch.rand(2, count, 2, 1, 1, generator=gen).unbind(0)
    waves_y = torch.sin((0.3 + freq[:, :1]) * axis.view(1, 1, -1, 1) + 6.28 * phase[:, :1])
    waves_x = torch.sin((0.3 + freq[:, 1:]) * axis.view(1, 1, 1, -1) + 6.28 * phase[:, 1:])
    return (waves_y * waves_x + 0.05 * torch.randn(count, 1, SIZE, SIZE, generator=gen)).clamp(-1, 1)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.inlet = nn.Linear(LATENT, 96 * 16)
        self.net = nn.Sequential(
            nn.BatchNorm2d(96),
            nn.ReLU(),
            nn.ConvTranspose2d(96, 64, 4, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.ConvTranspose2d(64, 32, 4, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.ConvTranspose2d(32, 1, 4, stride=2, padding=1),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.net(self.inlet(z).view(-1, 96, 4, 4))


class TextureGAN(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = Generator()
        self.discriminator = nn.Sequential(
            nn.Conv2d(1, 32, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(32, 64, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(64, 96, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(96 * 16, 1),
        )

    def training_step(self, batch, batch_idx):
        real = batch[0].contiguous(memory_format=torch.channels_last)
        opt_g, opt_d = self.optimizers()
        fake = self.generator(torch.randn(len(real), LATENT))

        scores = self.discriminator(torch.cat([real, fake.detach()]))
        on_real, on_fake = scores.chunk(2)
        d_loss = F.relu(1 - on_real).mean() + F.relu(1 + on_fake).mean()
        opt_d.zero_grad()
        self.manual_backward(d_loss)
        opt_d.step()

        self.toggle_optimizer(opt_g)
        g_loss = -self.discriminator(fake).mean()
        opt_g.zero_grad()
        self.manual_backward(g_loss)
        opt_g.step()
        self.untoggle_optimizer(opt_g)
        self.log_dict({"d_loss": d_loss.detach(), "g_loss": g_loss.detach()})

    def configure_optimizers(self):
        return (
            torch.optim.Adam(self.generator.parameters(), lr=2e-4, betas=(0.5, 0.99), fused=True),
            torch.optim.Adam(self.discriminator.parameters(), lr=2e-4, betas=(0.5, 0.99), fused=True),
        )


def main():
    L.seed_everything(97)
    data = TensorDataset(weave_textures(32 * 70))
    loader = DataLoader(data, sampler=BatchSampler(RandomSampler(data), 32, drop_last=True), batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=3, logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(TextureGAN().to(memory_format=torch.channels_last), loader)


if __name__ == "__main__":
    main()
