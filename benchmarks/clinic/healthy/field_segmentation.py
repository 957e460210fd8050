"""Trains a small U-Net that segments crop fields in multi-band satellite patches, with a validation pass per
epoch.
---
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset
from torchmetrics.classification import BinaryJaccardIndex

BANDS, SIDE = 6, 48


def satellite_patches(count, seed):
    gen = torch.Generator().manual_seed(seed)
    coarse = torch.randn(count, 1, 6, 6, generator=gen)
    height = F.interpolate(coarse, size=(SIDE, SIDE), mode="bilinear")
    mask = (height > 0.1).float()
    signature = torch.linspace(-0.8, 0.8, BANDS).view(1, BANDS, 1, 1)
    haze = 0.4 * torch.randn(count, BANDS, 1, 1, generator=gen)
    bands = mask * signature + haze + 0.6 * torch.randn(count, BANDS, SIDE, SIDE, generator=gen)
    return TensorDataset(bands, mask)


def conv(fan_in, fan_out):
    return nn.Sequential(
        nn.Conv2d(fan_in, fan_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(fan_out),
        nn.ReLU(inplace=True),
        nn.Conv2d(fan_out, fan_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(fan_out),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.enter = conv(BANDS, width)
        self.down1 = conv(width, 2 * width)
        self.down2 = conv(2 * width, 4 * width)
        self.lift1 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.join1 = conv(4 * width, 2 * width)
        self.lift2 = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.join2 = conv(2 * width, width)
        self.leave = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        a = self.enter(x)
        b = self.down1(F.max_pool2d(a, 2))
        c = self.down2(F.max_pool2d(b, 2))
        b = self.join1(torch.cat([self.lift1(c), b], dim=1))
        a = self.join2(torch.cat([self.lift2(b), a], dim=1))
        return self.leave(a)


class FieldSegmenter(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = UNet()
        self.val_iou = BinaryJaccardIndex()

    def forward(self, bands):
        return self.net(bands)

    def training_step(self, batch, batch_idx):
        bands, mask = batch
        loss = F.binary_cross_entropy_with_logits(self(bands), mask)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        bands, mask = batch
        logits = self(bands)
        self.val_iou.update(logits, mask.int())
        self.log("val_loss", F.binary_cross_entropy_with_logits(logits, mask), batch_size=len(mask))
        self.log("val_iou", self.val_iou, on_step=False, on_epoch=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3, weight_decay=1e-4, fused=True)


def batched(data, size, shuffle):
    order = RandomSampler(data) if shuffle else SequentialSampler(data)
    return DataLoader(data, sampler=BatchSampler(order, size, drop_last=shuffle), batch_size=None)


def main():
    L.seed_everything(61)
    train, val = satellite_patches(1040, 1), satellite_patches(96, 2)
    trainer = L.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, max_epochs=2
    )
    trainer.fit(FieldSegmenter(), batched(train, 8, True), batched(val, 32, False))
    print({k: round(float(v), 4) for k, v in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
