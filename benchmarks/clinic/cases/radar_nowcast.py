"""Forecasts the next rain radar frame from the last four, with a pixel loss and a texture loss from a fixed encoder.
The parameters of the fixed encoder still ask for gradients.
---
expect: PD323
fix:
  'self.texture = TextureEncoder(seed=77).eval()': 'self.texture = TextureEncoder(seed=77).eval().requires_grad_(False)'
half: tune
"""

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

PAST, SIZE = 4, 48


def rain_sequences(count, seed):
    """Rain cells that drift across the field with a constant wind."""
    gen = torch.Generator().manual_seed(seed)
    grid = torch.arange(SIZE, dtype=torch.float32)
    frames = torch.zeros(count, PAST + 1, SIZE, SIZE)
    for _ in range(5):
        start = torch.rand(count, 2, generator=gen) * SIZE
        wind = torch.randn(count, 2, generator=gen) * 2.5
        radius = 3 + 5 * torch.rand(count, 1, 1, generator=gen)
        for t in range(PAST + 1):
            x, y = (start + t * wind).unbind(dim=1)
            dx = (grid[None, None, :] - x[:, None, None]) / radius
            dy = (grid[None, :, None] - y[:, None, None]) / radius
            frames[:, t] += torch.exp(-(dx**2) - dy**2)
    return frames[:, :PAST], frames[:, PAST:]


class TextureEncoder(nn.Module):
    """Fixed filters at two scales, the same for all experiments."""

    def __init__(self, seed, width=48):
        super().__init__()
        self.fine = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
        )
        self.coarse = nn.Sequential(nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(width, 2 * width, 3, padding=1))
        gen = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=gen) * (0.05 if p.dim() > 1 else 0.0))

    def forward(self, frame):
        fine = self.fine(frame)
        return fine, self.coarse(fine)


class Nowcaster(L.LightningModule):
    def __init__(self, width=16, lr=1e-3):
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(
            nn.Conv2d(PAST, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 1, 3, padding=1),
        )
        self.texture = TextureEncoder(seed=77).eval()

    def forward(self, past):
        return past[:, -1:] + self.net(past)

    def texture_loss(self, forecast, target):
        pairs = zip(self.texture(forecast), self.texture(target), strict=False)
        return sum(F.l1_loss(a.float(), b.float()) for a, b in pairs)

    def training_step(self, batch, batch_idx):
        past, target = batch
        forecast = self(past)
        loss = F.mse_loss(forecast, target) + 0.2 * self.texture_loss(forecast, target)
        self.log("train_loss", loss, batch_size=len(past))
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.net.parameters(), lr=self.lr, fused=True)


def main():
    L.seed_everything(8)
    train = DataLoader(TensorDataset(*rain_sequences(480, seed=4)), batch_size=8, shuffle=True)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=3,
        precision="bf16-mixed",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Nowcaster().to(memory_format=torch.channels_last)
    trainer.fit(model, train)
    print("train_loss", round(float(trainer.callback_metrics["train_loss"]), 4))


if __name__ == "__main__":
    main()
