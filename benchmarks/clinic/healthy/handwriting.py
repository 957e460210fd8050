"""Reads single handwritten signs (26 shapes of strokes on 32 x 32 pixels) with a small residual network, in bfloat16
and with the channels last in memory.
---
half: score
"""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SIGNS = 26
SIDE = 32


def write(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Each sign is a curve through five points that the writer's hand shifts, drawn as a soft line."""
    skeletons = torch.rand(SIGNS, 5, 2) * 20 + 6
    signs = torch.randint(SIGNS, (count,))
    points = skeletons[signs] + 1.2 * torch.randn(count, 5, 2)
    strokes = nn.functional.interpolate(points.transpose(1, 2), size=24, mode="linear", align_corners=True)
    axis = torch.arange(SIDE)
    pages = []
    for part in strokes.split(256):
        across = (part[:, 0, :, None] - axis).square().mul(-0.4).exp()
        down = (part[:, 1, :, None] - axis).square().mul(-0.4).exp()
        pages.append(torch.einsum("npy,npx->nyx", down, across).clamp(max=1.0))
    ink = torch.cat(pages).unsqueeze(1)
    return ink + 0.1 * torch.randn_like(ink), signs


class Block(nn.Module):
    def __init__(self, inside: int, outside: int):
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride=2, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outside)
        self.second = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outside)
        self.skip = nn.Conv2d(inside, outside, 1, stride=2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.relu(self.norm1(self.first(x)), inplace=True)
        return nn.functional.relu(self.norm2(self.second(y)) + self.skip(x), inplace=True)


class SignReader(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 32, 3, stride=2, padding=1),
            nn.ReLU(inplace=True),
            Block(32, 128),
            Block(128, 256),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(256, SIGNS),
        )

    def forward(self, ink: torch.Tensor) -> torch.Tensor:
        return self.net(ink)

    def training_step(self, batch, batch_idx):
        ink, signs = batch
        loss = nn.functional.cross_entropy(self(ink), signs)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


def main():
    L.seed_everything(13)
    loader = DataLoader(TensorDataset(*write(2880)), batch_size=48, shuffle=True, drop_last=True)
    model = SignReader().to(memory_format=torch.channels_last)
    trainer = L.Trainer(
        accelerator="cpu",
        precision="bf16-mixed",
        max_epochs=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(model, loader)
    print(trainer.callback_metrics["train_loss"].item())


if __name__ == "__main__":
    main()
