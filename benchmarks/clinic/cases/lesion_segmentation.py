"""U-Net-like lesion segmentation on synthetic ultrasound slices; the training step also logs a Hausdorff distance from
scipy for every image of every batch.
---
expect: PD511
half: tune
fix:
  '        self.log("train_hd95", batch_hd95(logits.detach() > 0, masks > 0.5))  # costs time': |2-
            if self.global_step % self.trainer.log_every_n_steps == 0:
                self.log("train_hd95", batch_hd95(logits.detach() > 0, masks > 0.5))
"""

import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from scipy.ndimage import binary_erosion, distance_transform_edt
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SIZE = 96


def make_slices(n=420):
    gen = torch.Generator().manual_seed(0)
    ys, xs = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    cy, cx = (24 + 48 * torch.rand(2, n, 1, 1, generator=gen)).unbind(0)
    ry, rx = (9 + 12 * torch.rand(2, n, 1, 1, generator=gen)).unbind(0)
    masks = ((((ys - cy) / ry) ** 2 + ((xs - cx) / rx) ** 2) < 1).float()
    images = 0.5 - 0.3 * masks + 0.25 * torch.randn(n, SIZE, SIZE, generator=gen)
    return images[:, None], masks[:, None]


def surface_distances(a, b):
    border_a = a ^ binary_erosion(a)
    border_b = b ^ binary_erosion(b)
    return distance_transform_edt(~border_b)[border_a]


def batch_hd95(pred, target):
    scores = []
    for p, t in zip(pred[:, 0].cpu().numpy(), target[:, 0].cpu().numpy(), strict=True):
        if not p.any() or not t.any():
            scores.append(float(SIZE))
            continue
        distances = np.concatenate([surface_distances(p, t), surface_distances(t, p)])
        scores.append(np.percentile(distances, 95))
    return float(np.mean(scores))


def conv_block(c_in, c_out, stride=1):
    conv = nn.Conv2d(c_in, c_out, 3, stride=stride, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(c_out), nn.ReLU(inplace=True))


class LesionNet(LightningModule):
    def __init__(self, width=6):
        super().__init__()
        self.enc1, self.enc2 = conv_block(1, width, stride=2), conv_block(width, 2 * width)
        self.mid = conv_block(2 * width, 4 * width)
        self.dec2, self.dec1 = conv_block(6 * width, 2 * width), conv_block(3 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        e1 = self.enc1(x)
        e2 = self.enc2(F.max_pool2d(e1, 2))
        m = self.mid(F.max_pool2d(e2, 2))
        d2 = self.dec2(torch.cat([F.interpolate(m, scale_factor=2), e2], 1))
        d1 = self.dec1(torch.cat([F.interpolate(d2, scale_factor=2), e1], 1))
        return F.interpolate(self.out(d1), scale_factor=2, mode="bilinear")

    def training_step(self, batch, batch_idx):
        images, masks = batch
        logits = self(images)
        prob = logits.sigmoid()
        dice = 1 - (2 * (prob * masks).sum() + 1) / (prob.sum() + masks.sum() + 1)
        loss = F.binary_cross_entropy_with_logits(logits, masks) + dice
        self.log("train_loss", loss)
        self.log("train_hd95", batch_hd95(logits.detach() > 0, masks > 0.5))  # costs time
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3, fused=True)


if __name__ == "__main__":
    seed_everything(2)
    loader = DataLoader(TensorDataset(*make_slices()), batch_size=6, shuffle=True)
    trainer = Trainer(
        accelerator="cpu", max_epochs=6, enable_progress_bar=False, enable_checkpointing=False, logger=False
    )
    trainer.fit(LesionNet(), loader)
