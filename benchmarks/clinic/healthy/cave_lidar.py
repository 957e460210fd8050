"""Labels lidar points of caves as rock, floor, or water with a point network; scans are batched as one tensor.
---
half: score
"""

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

POINTS = 512
CLASSES = 3
MAX_STEPS = 270


def cave_scans(scans: int, seed: int) -> TensorDataset:
    """Scans of tunnels: points on an ellipse with noise; low points are floor, and water reflects little."""
    generator = torch.Generator().manual_seed(seed)
    angle = torch.rand(scans, POINTS, generator=generator) * 2.0 * torch.pi
    along = torch.rand(scans, POINTS, generator=generator) * 4.0
    size = 0.5 + torch.rand(scans, 1, 2, generator=generator)
    radius = 1.0 + 0.08 * torch.randn(scans, POINTS, generator=generator)
    across = size[..., 0] * radius * angle.cos()
    height = size[..., 1] * radius * angle.sin()
    floor = height < -0.6 * size[..., 1]
    wet = floor & (along < 4.0 * torch.rand(scans, 1, generator=generator))
    echo = 0.8 - 0.5 * wet.float() + 0.2 * torch.randn(scans, POINTS, generator=generator)
    return TensorDataset(torch.stack([across, along, height, echo], dim=2), floor.long() + wet.long())


class PointNet(nn.Module):
    """A feature per point, joined with the maximum over the scan."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.local = nn.Sequential(
            nn.Linear(4, width),
            nn.ReLU(inplace=True),
            nn.Linear(width, width),
            nn.ReLU(inplace=True),
        )
        self.mix_local = nn.Linear(width, width)
        self.mix_scan = nn.Linear(width, width, bias=False)
        self.head = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(width, CLASSES))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        local = self.local(points)
        scan = local.amax(dim=1, keepdim=True)
        return self.head(self.mix_local(local) + self.mix_scan(scan))


class LidarModule(L.LightningModule):
    def __init__(self, learning_rate: float = 3e-3) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.net = PointNet()

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        points, labels = batch
        return F.cross_entropy(self.net(points).flatten(0, 1), labels.flatten())

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.learning_rate, fused=True)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=self.learning_rate, total_steps=MAX_STEPS)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def main() -> None:
    L.seed_everything(33)
    dataset = cave_scans(scans=2048, seed=33)
    batches = BatchSampler(RandomSampler(dataset), batch_size=24, drop_last=True)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=MAX_STEPS,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
    )
    trainer.fit(LidarModule(), DataLoader(dataset, sampler=batches, batch_size=None))


if __name__ == "__main__":
    main()
