"""Trains a small residual U-Net that forecasts tomorrow's sea-ice concentration from five days of maps; autograd's
anomaly detection, a debugging aid, is left on in the trainer.
---
expect: PD503
fix: {"detect_anomaly=True,": ""}
half: score
"""

import lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

DAYS, SIDE = 5, 48


class IceMaps(Dataset):
    """Drifting, smooth concentration fields."""

    def __init__(self, count: int, seed: int):
        gen = torch.Generator().manual_seed(seed)
        coarse = torch.rand(count, DAYS + 1, 6, 6, generator=gen)
        coarse = 0.15 * coarse + 0.85 * coarse[:, :1]
        fields = F.interpolate(coarse, size=(SIDE, SIDE), mode="bilinear", align_corners=True)
        self.past, self.next = fields[:, :DAYS].contiguous(), fields[:, DAYS:].contiguous()

    def __len__(self):
        return len(self.past)

    def __getitems__(self, indices):
        index = torch.as_tensor(indices)
        return self.past[index], self.next[index]


def as_is(batch):
    return batch


class Block(nn.Module):
    """Depthwise and pointwise convolution with a gate and a residual connection."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.GroupNorm(4, width)
        self.depth = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.expand = nn.Conv2d(width, 2 * width, 1)
        self.shrink = nn.Conv2d(width, width, 1)
        self.scale = nn.Parameter(torch.full((width, 1, 1), 0.1))

    def forward(self, x):
        value, gate = self.expand(self.depth(self.norm(x))).chunk(2, dim=1)
        return x + self.scale * self.shrink(value * torch.sigmoid(gate))


class IceForecaster(lightning.LightningModule):
    def __init__(self, width: int = 16):
        super().__init__()
        self.stem = nn.Conv2d(DAYS, width, 3, padding=1)
        self.fine = nn.Sequential(Block(width), Block(width))
        self.down = nn.Conv2d(width, 2 * width, 2, stride=2)
        self.coarse = nn.Sequential(Block(2 * width), Block(2 * width))
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.last = Block(width)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, past):
        fine = self.fine(self.stem(past))
        merged = fine + self.up(self.coarse(self.down(fine)))
        return past[:, -1:] + self.head(self.last(merged))

    def training_step(self, batch, batch_idx):
        past, after = batch
        return F.smooth_l1_loss(self(past), after, beta=0.1)

    def validation_step(self, batch, batch_idx):
        past, after = batch
        self.log("val_mae", F.l1_loss(self(past), after), batch_size=len(past))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3, fused=True)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3)
        return [optimizer], [scheduler]


if __name__ == "__main__":
    lightning.seed_everything(9, verbose=False)
    train = DataLoader(IceMaps(8 * 36, seed=1), batch_size=8, shuffle=True, collate_fn=as_is)
    valid = DataLoader(IceMaps(32, seed=2), batch_size=16, collate_fn=as_is)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        detect_anomaly=True,
    )
    trainer.fit(IceForecaster(), train, valid)
