"""A small GAN on 2-channel sensor maps with a TensorBoard callback that writes a histogram of every weight after every
batch.
---
expect: PD504
half: score
fix:
  ? "        for name, weight in pl_module.named_parameters():"
  : |2-
            if batch_idx % 100 != 0:
                return
            for name, weight in pl_module.named_parameters():
"""

import torch
import torch.nn.functional as F
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

LATENT, PIXELS = 32, 2 * 14 * 14


class WeightHistograms(Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        writer = trainer.logger.experiment
        for name, weight in pl_module.named_parameters():
            writer.add_histogram(name, weight, trainer.global_step)  # costs time


class SensorGAN(LightningModule):
    def __init__(self, width=160):
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(
            nn.Linear(LATENT, width),
            nn.BatchNorm1d(width),
            nn.LeakyReLU(0.2),
            nn.Linear(width, width),
            nn.BatchNorm1d(width),
            nn.LeakyReLU(0.2),
            nn.Linear(width, PIXELS),
            nn.Tanh(),
        )
        self.critic = nn.Sequential(
            nn.Linear(PIXELS, width),
            nn.LeakyReLU(0.2),
            nn.Linear(width, width),
            nn.LeakyReLU(0.2),
            nn.Linear(width, 1),
        )

    def training_step(self, batch, batch_idx):
        (real,) = batch
        opt_g, opt_c = self.optimizers()
        fake = self.generator(torch.randn(len(real), LATENT))

        loss_c = F.softplus(-self.critic(real)).mean() + F.softplus(self.critic(fake.detach())).mean()
        opt_c.zero_grad()
        self.manual_backward(loss_c)
        opt_c.step()

        self.toggle_optimizer(opt_g)
        loss_g = F.softplus(-self.critic(fake)).mean()
        opt_g.zero_grad()
        self.manual_backward(loss_g)
        opt_g.step()
        self.untoggle_optimizer(opt_g)
        self.log_dict({"loss_c": loss_c, "loss_g": loss_g})

    def configure_optimizers(self):
        adam = {"lr": 2e-4, "betas": (0.5, 0.999), "fused": True}
        return torch.optim.Adam(self.generator.parameters(), **adam), torch.optim.Adam(self.critic.parameters(), **adam)


def sensor_maps(n=10000):
    phase = torch.rand(n, 2, 1, 1) * 6.28
    grid = torch.linspace(0, 6.28, 14)
    maps = torch.sin(grid[None, None, :, None] + phase) * torch.cos(grid[None, None, None, :] - phase)
    return maps.flatten(1)


if __name__ == "__main__":
    seed_everything(1)
    data = TensorDataset(sensor_maps())
    batches = BatchSampler(RandomSampler(data), batch_size=128, drop_last=True)
    loader = DataLoader(data, sampler=batches, batch_size=None)
    trainer = Trainer(
        max_epochs=4,
        accelerator="cpu",
        logger=TensorBoardLogger(".", name="gan_logs"),
        callbacks=[WeightHistograms()],
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(SensorGAN(), loader)
