"""A depthwise separable segmentation network that maps the land cover of satellite tiles, trained with the convolution
kernels of oneDNN switched off.
---
expect: PD338
fix:
  "torch.backends.mkldnn.enabled = False": "torch.backends.mkldnn.enabled = True"
half: score
"""

import lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

BANDS, SIDE, COVERS = 6, 32, 5


def tiles(count, seed):
    """Tiles of smooth patches of land cover, seen in six bands through haze."""
    g = torch.Generator().manual_seed(seed)
    spectrum = torch.randn(COVERS, BANDS, generator=torch.Generator().manual_seed(0))
    height = F.interpolate(torch.randn(count, COVERS, 5, 5, generator=g), size=SIDE, mode="bicubic")
    cover = height.argmax(1)
    image = spectrum[cover].permute(0, 3, 1, 2) + torch.randn(count, BANDS, SIDE, SIDE, generator=g)
    haze = torch.rand(count, 1, 1, 1, generator=g)
    return TensorDataset(((1 - 0.5 * haze) * image + haze).contiguous(), cover)


class Separable(nn.Module):
    """A depthwise 3x3 convolution (dilated), a pointwise one, and a shortcut."""

    def __init__(self, width, dilation):
        super().__init__()
        self.depth = nn.Conv2d(width, width, 3, padding=dilation, dilation=dilation, groups=width, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.point = nn.Conv2d(width, width, 1)

    def forward(self, x):
        return x + F.relu(self.point(self.norm(self.depth(x))))


class LandCover(lightning.LightningModule):
    def __init__(self, width=32):
        super().__init__()
        self.stem = nn.Conv2d(BANDS, width, 3, padding=1)
        self.body = nn.Sequential(*(Separable(width, dilation) for dilation in (1, 2, 4)))
        self.head = nn.Conv2d(width, COVERS, 1)

    def forward(self, image):
        return self.head(self.body(F.relu(self.stem(image))))

    def training_step(self, batch, batch_idx):
        image, cover = batch
        return F.cross_entropy(self(image), cover)

    def validation_step(self, batch, batch_idx):
        image, cover = batch
        logits = self(image)
        self.log("val_accuracy", (logits.argmax(1) == cover).float().mean(), batch_size=len(image))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3, fused=True)


def loader(dataset, shuffle=False):
    order = RandomSampler(dataset) if shuffle else SequentialSampler(dataset)
    return DataLoader(dataset, sampler=BatchSampler(order, 16, drop_last=shuffle), batch_size=None)


if __name__ == "__main__":
    lightning.seed_everything(13, verbose=False)
    torch.backends.mkldnn.enabled = False
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(LandCover(), loader(tiles(576, seed=1), shuffle=True), loader(tiles(96, seed=2)))
