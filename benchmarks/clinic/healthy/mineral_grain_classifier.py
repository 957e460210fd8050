"""Classifies mineral grains in thin-section images with a small residual convolutional network in bfloat16, with the
memory format that convolutions like. The images are in memory, and whole batches are flipped at random.
---
half: score
"""

import lightning as L
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

MINERALS, SIZE = 5, 48


def thin_sections(grains, seed):
    """Round grains whose stripes (cleavage) and tint tell the mineral."""
    gen = torch.Generator().manual_seed(seed)
    mineral = torch.randint(0, MINERALS, (grains,), generator=gen)
    axis = torch.linspace(-1, 1, SIZE)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    turn = torch.pi * torch.rand(grains, 1, 1, generator=gen)
    across = x * turn.cos() + y * turn.sin()
    stripes = torch.sin(across * (6.0 + 5.0 * mineral[:, None, None]))
    grain = ((x**2 + y**2).sqrt() < 0.5 + 0.4 * torch.rand(grains, 1, 1, generator=gen)).float()
    tint = torch.linspace(0.5, 1.0, MINERALS)[mineral][:, None] + 0.3 * torch.randn(grains, 3, generator=gen)
    image = tint[:, :, None, None] * (grain * (1 + 0.4 * stripes))[:, None]
    image = image + 0.4 * torch.randn(grains, 3, SIZE, SIZE, generator=gen)
    return image.contiguous(memory_format=torch.channels_last), mineral


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x):
        return torch.relu(x + self.body(x))


class GrainNet(L.LightningModule):
    def __init__(self, width=64, lr=1e-3):
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(
            nn.Conv2d(3, width, 4, stride=4),
            nn.ReLU(inplace=True),
            Residual(width),
            Residual(width),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.ReLU(inplace=True),
            Residual(2 * width),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(2 * width, MINERALS),
        )

    def forward(self, image):
        return self.net(image)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        image, mineral = batch
        if self.training and torch.rand(()) < 0.5:
            image = image.flip(3)
        return image, mineral

    def training_step(self, batch, batch_idx):
        image, mineral = batch
        loss = nn.functional.cross_entropy(self(image), mineral)
        self.log("train_loss", loss, batch_size=len(mineral))
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=0.01, fused=True)


def main():
    L.seed_everything(61)
    data = TensorDataset(*thin_sections(1600, seed=3))
    sampler = BatchSampler(RandomSampler(data), 64, drop_last=True)
    loader = DataLoader(data, sampler=sampler, batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=7,
        precision="bf16-mixed",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = GrainNet().to(memory_format=torch.channels_last)
    trainer.fit(model, loader)
    print("train_loss", round(float(trainer.callback_metrics["train_loss"]), 4))


if __name__ == "__main__":
    main()
