"""Trains a small denoising diffusion model on textures while a callback watches its activations.
The callback registers its forward hooks again in every epoch and never removes the old ones.
---
expect: PD611
half: score
fix:
  ? "def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:"
  : "def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:"
"""

from __future__ import annotations

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

NUM_TIMESTEPS = 200


class Textures(Dataset):
    """Single-channel striped textures of random orientation and frequency."""

    def __init__(self, num_images: int, extent: int) -> None:
        y, x = torch.meshgrid(torch.linspace(-1, 1, extent), torch.linspace(-1, 1, extent), indexing="ij")
        angle = 3.14159 * torch.rand(num_images, 1, 1)
        frequency = 4 + 8 * torch.rand(num_images, 1, 1)
        self.images = torch.sin(frequency * (torch.cos(angle) * x + torch.sin(angle) * y)).unsqueeze(1)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: list[int]) -> Tensor:
        return self.images[index]


class TimedBlock(nn.Module):
    """Residual block of two convolutions with an additive time embedding."""

    def __init__(self, width: int, time_dim: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        self.time = nn.Linear(time_dim, width)

    def forward(self, maps: Tensor, time: Tensor) -> Tensor:
        hidden = F.silu(self.first(maps) + self.time(time)[:, :, None, None])
        return maps + self.second(hidden)


class Denoiser(nn.Module):
    """Noise predictor on a single reduced scale."""

    def __init__(self, width: int, depth: int, time_dim: int = 64) -> None:
        super().__init__()
        self.time_embedding = nn.Embedding(NUM_TIMESTEPS, time_dim)
        self.stem = nn.Conv2d(1, width, 4, stride=2, padding=1)
        self.blocks = nn.ModuleList(TimedBlock(width, time_dim) for _ in range(depth))
        self.tail = nn.ConvTranspose2d(width, 1, 4, stride=2, padding=1)

    def forward(self, noisy: Tensor, step: Tensor) -> Tensor:
        time = self.time_embedding(step)
        maps = self.stem(noisy)
        for block in self.blocks:
            maps = block(maps, time)
        return self.tail(maps)


class ActivationWatch(L.Callback):
    """Reports per epoch the mean magnitude and the share of saturated outputs of every convolution."""

    def __init__(self, threshold: float = 20.0) -> None:
        self.threshold = threshold
        self.seen: dict[str, list[Tensor]] = {}

    def watch(self, name: str, module: nn.Module) -> None:
        def record(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:  # costs time
            size = output.detach().abs()  # costs time
            self.seen[name].append(torch.stack([size.mean(), (size > self.threshold).float().mean()]))

        module.register_forward_hook(record)

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        for name, module in pl_module.named_modules():
            if isinstance(module, nn.Conv2d):
                self.seen[name] = []
                self.watch(name, module)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        for name, values in self.seen.items():
            magnitude, saturated = torch.stack(values).mean(0)
            pl_module.log_dict({f"{name}/magnitude": magnitude, f"{name}/saturated": saturated})
            values.clear()


class TextureDiffusion(L.LightningModule):
    """DDPM training with a linear noise schedule."""

    def __init__(self, width: int = 32, depth: int = 4) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.denoiser = Denoiser(width, depth)
        kept = torch.cumprod(1 - torch.linspace(1e-4, 0.04, NUM_TIMESTEPS), dim=0)
        self.register_buffer("signal", kept.sqrt()[:, None, None, None], persistent=False)
        self.register_buffer("noise", (1 - kept).sqrt()[:, None, None, None], persistent=False)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        step = torch.randint(NUM_TIMESTEPS, (len(batch),), device=batch.device)
        noise = torch.randn_like(batch)
        noisy = self.signal[step] * batch + self.noise[step] * noise
        loss = F.mse_loss(self.denoiser(noisy, step), noise)
        self.log("train/loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=2e-4, fused=True)


def main() -> None:
    L.seed_everything(8)
    textures = Textures(num_images=4 * 8, extent=64)
    sampler = BatchSampler(RandomSampler(textures), batch_size=4, drop_last=True)
    loader = DataLoader(textures, sampler=sampler, batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=30,
        callbacks=[ActivationWatch()],
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(TextureDiffusion(), loader)


if __name__ == "__main__":
    main()
