"""Trains a Wasserstein GAN on small galaxy images; the critic is kept Lipschitz by dividing each layer by its spectral
norm after every update. The norm is taken from a full singular value decomposition, with all singular vectors
(full_matrices defaults to true), of which only the largest singular value is used.
---
expect: PD504
fix:
  ? "                _, s, _ = torch.linalg.svd(weight)  # costs time"
  : "                s = torch.linalg.svdvals(weight)"
half: score
"""

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_galaxies(count, size=32, seed=0):
    gen = torch.Generator().manual_seed(seed)
    axis = torch.linspace(-1, 1, size)
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    angle = torch.rand(count, 1, 1, generator=gen) * 3.14159
    ratio = 0.3 + 0.7 * torch.rand(count, 1, 1, generator=gen)
    scale = 0.1 + 0.2 * torch.rand(count, 1, 1, generator=gen)
    u = xx * angle.cos() + yy * angle.sin()
    v = (yy * angle.cos() - xx * angle.sin()) / ratio
    image = torch.exp(-torch.sqrt(u**2 + v**2 + 1e-6) / scale)
    image = image + 0.02 * torch.randn(count, size, size, generator=gen)
    return (2 * image - 1).unsqueeze(1)


class LipschitzCritic(Callback):
    """Projects the critic's layers onto spectral norm at most one after each update."""

    @torch.no_grad()
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        for layer in pl_module.critic:
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                weight = layer.weight.flatten(1)
                _, s, _ = torch.linalg.svd(weight)  # costs time
                layer.weight.div_(s[0].clamp(min=1.0))


class GalaxyGAN(L.LightningModule):
    def __init__(self, latent=64):
        super().__init__()
        self.automatic_optimization = False
        self.latent = latent
        self.generator = nn.Sequential(
            nn.Linear(latent, 64 * 4 * 4),
            nn.ReLU(),
            nn.Unflatten(1, (64, 4, 4)),
            nn.ConvTranspose2d(64, 64, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(64, 32, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(32, 1, 4, 2, 1),
            nn.Tanh(),
        )
        self.critic = nn.Sequential(
            nn.Conv2d(1, 32, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(32, 64, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(64, 64, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(64 * 4 * 4, 1),
        )
        self.to(memory_format=torch.channels_last)

    def fake(self, count):
        return self.generator(torch.randn(count, self.latent, device=self.device))

    def training_step(self, batch, batch_idx):
        (real,) = batch
        opt_g, opt_c = self.optimizers()
        with torch.no_grad():
            fake = self.fake(len(real))
        critic_loss = self.critic(fake).mean() - self.critic(real).mean()
        opt_c.zero_grad()
        self.manual_backward(critic_loss)
        opt_c.step()

        self.toggle_optimizer(opt_g)
        generator_loss = -self.critic(self.fake(len(real))).mean()
        opt_g.zero_grad()
        self.manual_backward(generator_loss)
        opt_g.step()
        self.untoggle_optimizer(opt_g)
        self.log_dict({"critic_loss": critic_loss, "generator_loss": generator_loss})

    def configure_optimizers(self):
        opt_g = torch.optim.RMSprop(self.generator.parameters(), lr=1e-4)
        opt_c = torch.optim.RMSprop(self.critic.parameters(), lr=1e-4)
        return opt_g, opt_c


if __name__ == "__main__":
    L.seed_everything(0)
    loader = DataLoader(TensorDataset(make_galaxies(800)), batch_size=16, shuffle=True, drop_last=True)
    trainer = L.Trainer(
        max_epochs=4, accelerator="cpu", callbacks=[LipschitzCritic()], logger=False, enable_checkpointing=False
    )
    trainer.fit(GalaxyGAN(), loader)
