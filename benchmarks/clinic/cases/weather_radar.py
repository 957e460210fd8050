"""A conditional GAN forecasts the next weather radar frame with manual optimization; the discriminator's loss is
propagated back through the generator too.
---
expect: PD323
fix:
  "seen = torch.cat([past, forecast], 1)": "seen = torch.cat([past, forecast.detach()], 1)"
  "self.manual_backward(d_loss, retain_graph=True)  # costs time": "self.manual_backward(d_loss)"
half: score
"""

import lightning
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

PAST, SIZE = 4, 48


class RadarSequences(Dataset):
    """Rain cells that drift across the image: PAST frames and the one to forecast."""

    def __init__(self, count, seed, cells=4):
        generator = torch.Generator().manual_seed(seed)
        place = SIZE * torch.rand(count, cells, 1, 2, generator=generator)
        speed = 2 * torch.randn(count, 1, 1, 2, generator=generator)
        radius = 2 + 4 * torch.rand(count, cells, 1, 1, 1, generator=generator)
        place = place + speed * torch.arange(PAST + 1).view(1, 1, -1, 1)
        axis = torch.arange(SIZE)
        dx = (axis - place[..., :1]).unsqueeze(3)
        dy = (axis - place[..., 1:]).unsqueeze(4)
        self.frames = torch.exp(-(dx**2 + dy**2) / radius**2).sum(1).clamp(max=1)

    def __len__(self):
        return len(self.frames)

    def __getitems__(self, indices):
        frames = self.frames[indices]
        return frames[:, :PAST], frames[:, PAST:]


def as_is(batch):
    return batch


class Generator(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.down = nn.Conv2d(PAST, width, 4, stride=2, padding=1)
        self.body = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(6))
        self.up = nn.ConvTranspose2d(width, 1, 4, stride=2, padding=1)

    def forward(self, past):
        x = F.relu(self.down(past))
        for conv in self.body:
            x = x + F.relu(conv(x))
        return past[:, -1:] + self.up(x)


def build_discriminator(width=16):
    return nn.Sequential(
        nn.Conv2d(PAST + 1, width, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(width, 2 * width, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(2 * width, 1, 4, stride=2, padding=1),
    )


class Nowcast(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = Generator()
        self.discriminator = build_discriminator()

    def training_step(self, batch, batch_idx):
        past, future = batch
        g_optimizer, d_optimizer = self.optimizers()
        forecast = self.generator(past)

        seen = torch.cat([past, forecast], 1)
        real = self.discriminator(torch.cat([past, future], 1))
        fake = self.discriminator(seen)
        d_loss = F.relu(1 - real).mean() + F.relu(1 + fake).mean()
        d_optimizer.zero_grad()
        self.manual_backward(d_loss, retain_graph=True)  # costs time
        d_optimizer.step()

        self.discriminator.requires_grad_(False)
        g_loss = 10 * F.l1_loss(forecast, future) - self.discriminator(torch.cat([past, forecast], 1)).mean()
        g_optimizer.zero_grad()
        self.manual_backward(g_loss)
        g_optimizer.step()
        self.discriminator.requires_grad_(True)

    def validation_step(self, batch, batch_idx):
        past, future = batch
        self.log("val_l1", F.l1_loss(self.generator(past), future), batch_size=len(past))

    def configure_optimizers(self):
        g_optimizer = torch.optim.Adam(self.generator.parameters(), lr=5e-4, betas=(0.5, 0.999), fused=True)
        d_optimizer = torch.optim.Adam(self.discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)
        return g_optimizer, d_optimizer


if __name__ == "__main__":
    lightning.seed_everything(17)
    train = DataLoader(RadarSequences(592, 1), batch_size=16, shuffle=True, collate_fn=as_is)
    valid = DataLoader(RadarSequences(96, 2), batch_size=32, collate_fn=as_is)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Nowcast(), train, valid)
    print("val_l1", trainer.callback_metrics["val_l1"].item())
