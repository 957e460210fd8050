"""A residual convolutional network rates photographs of ceramic glazes by the kind of their cracks.
At the top of main() stands a switch that a forum once advised against "could not create a primitive".
It turns oneDNN off for the whole training, so that each convolution takes the slow fallback.
---
expect: PD338
fix:
  "    torch.backends.mkldnn.set_flags(False)": ""
half: score
"""

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

PHOTOS = 1280
KINDS = 5
SIDE = 32
BATCH = 16


class GlazePhotos(Dataset):
    """Photographs with cracks in a direction and density that depend on the kind."""

    def __init__(self, count: int):
        self.kinds = torch.randint(KINDS, (count,))
        axis = torch.linspace(-1.0, 1.0, SIDE)
        angle = (0.6 * self.kinds + 0.2 * torch.rand(count))[:, None, None]
        along = angle.cos() * axis[None, None, :] + angle.sin() * axis[None, :, None]
        density = (6.0 + 3.0 * (self.kinds % 3))[:, None, None]
        cracks = torch.exp(-8.0 * torch.sin(density * along + 6.3 * torch.rand(count, 1, 1)) ** 2)
        tint = torch.rand(count, 3, 1, 1)
        self.photos = tint - 0.4 * cracks[:, None] + 0.15 * torch.randn(count, 3, SIDE, SIDE)

    def __len__(self) -> int:
        return len(self.kinds)

    def __getitems__(self, indices: list[int]):
        return self.photos[indices], self.kinds[indices]


def as_is(batch):
    return batch


class Residual(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = F.relu(self.first_norm(self.first(x)), inplace=True)
        return F.relu(x + self.second_norm(self.second(inner)))


class GlazeNet(L.LightningModule):
    def __init__(self, width: int = 16, lr: float = 1e-3):
        super().__init__()
        self.lr = lr
        self.stem = nn.Conv2d(3, width, 5, stride=2, padding=2)
        self.early = nn.Sequential(Residual(width), Residual(width))
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.late = nn.Sequential(Residual(2 * width), Residual(2 * width))
        self.head = nn.Linear(2 * width, KINDS)

    def forward(self, photos: torch.Tensor) -> torch.Tensor:
        features = self.late(self.down(self.early(self.stem(photos))))
        return self.head(features.mean(dim=(2, 3)))

    def training_step(self, batch, batch_idx):
        photos, kinds = batch
        return F.cross_entropy(self(photos), kinds)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr, fused=True)


def main() -> None:
    torch.backends.mkldnn.set_flags(False)
    L.seed_everything(31)
    loader = DataLoader(
        GlazePhotos(PHOTOS),
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        collate_fn=as_is,
    )
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(GlazeNet(), loader)


if __name__ == "__main__":
    main()
