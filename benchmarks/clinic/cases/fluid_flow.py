"""Sharpens coarse fields of a fluid's vorticity fourfold with a generator that a discriminator keeps honest.
The discriminator's backward pass runs on through the generator, whose gradients are then thrown away.
---
expect: PD323
fix:
  "loss_d = self.hinge(self.critic(fine), self.critic(sharp))": |2-
    loss_d = self.hinge(self.critic(fine), self.critic(sharp.detach()))
  "self.manual_backward(loss_d, retain_graph=True)  # costs time": "self.manual_backward(loss_d)"
half: tune
"""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

GRID = 32


def stir(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random vorticity with a turbulent spectrum, in full and after averaging over blocks of four."""
    wave = torch.fft.fftfreq(GRID, 1 / GRID)
    size = (wave[:, None] ** 2 + wave[None, : GRID // 2 + 1] ** 2).sqrt()
    energy = size / (1 + (size / 4) ** 4)
    noise = torch.fft.rfft2(torch.randn(count, 1, GRID, GRID))
    fine = torch.fft.irfft2(noise * energy, s=(GRID, GRID))
    fine = fine / fine.std()
    return nn.functional.avg_pool2d(fine, 4), fine


class Residual(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


class Sharpener(nn.Module):
    def __init__(self, width: int = 24, blocks: int = 3):
        super().__init__()
        self.lift = nn.Conv2d(1, width, 3, padding=1)
        self.body = nn.Sequential(*[Residual(width) for _ in range(blocks)])
        self.out = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, coarse: torch.Tensor) -> torch.Tensor:
        smooth = nn.functional.interpolate(coarse, scale_factor=4, mode="bilinear")
        return smooth + self.out(self.body(self.lift(smooth)))


class FlowGan(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.sharpener = Sharpener()
        self.critic = nn.Sequential(
            nn.Conv2d(1, 16, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(16, 32, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(32, 1, 4),
        )

    @staticmethod
    def hinge(real: torch.Tensor, fake: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(1 - real).mean() + nn.functional.relu(1 + fake).mean()

    def training_step(self, batch, batch_idx):
        coarse, fine = batch
        opt_g, opt_d = self.optimizers()
        sharp = self.sharpener(coarse)

        loss_d = self.hinge(self.critic(fine), self.critic(sharp))
        opt_d.zero_grad()
        self.manual_backward(loss_d, retain_graph=True)  # costs time
        opt_d.step()

        self.toggle_optimizer(opt_g)
        loss_g = nn.functional.l1_loss(sharp, fine) - 0.02 * self.critic(sharp).mean()
        opt_g.zero_grad()
        self.manual_backward(loss_g)
        opt_g.step()
        self.untoggle_optimizer(opt_g)
        self.log_dict({"loss_d": loss_d.detach(), "loss_g": loss_g.detach()}, on_step=False, on_epoch=True)

    def configure_optimizers(self):
        opt_g = torch.optim.Adam(self.sharpener.parameters(), lr=5e-4, betas=(0.5, 0.99), fused=True)
        opt_d = torch.optim.Adam(self.critic.parameters(), lr=2e-4, betas=(0.5, 0.99), fused=True)
        return opt_g, opt_d


def main():
    L.seed_everything(11)
    loader = DataLoader(TensorDataset(*stir(960)), batch_size=10, shuffle=True, drop_last=True)
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(FlowGan(), loader)
    print({name: round(value.item(), 4) for name, value in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
