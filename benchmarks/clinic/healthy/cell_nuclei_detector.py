"""A detector without anchors finds nuclei in microscope images: focal loss on a heat map of centers, L1 loss
on sizes at the centers, and recall of the peaks as validation metric. The targets are made per batch,
vectorized.
---
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SIDE = 96
GRID = SIDE // 4
NUCLEI = 8


def photograph(count: int, seed: int):
    """Images as bytes with blurred ellipses, and the boxes (x, y, width, height) of all nuclei."""
    gen = torch.Generator().manual_seed(seed)
    centers = torch.rand(count, NUCLEI, 2, generator=gen) * (SIDE - 16) + 8
    sizes = torch.rand(count, NUCLEI, 2, generator=gen) * 10 + 6
    axis = torch.arange(SIDE, dtype=torch.float32)
    images = torch.rand(count, SIDE, SIDE, generator=gen) * 60
    for k in range(NUCLEI):
        gx = torch.exp(-(((axis - centers[:, k, :1]) / sizes[:, k, :1]) ** 2) * 4)
        gy = torch.exp(-(((axis - centers[:, k, 1:]) / sizes[:, k, 1:]) ** 2) * 4)
        images += 150 * gy[:, :, None] * gx[:, None, :]
    return images.clamp(0, 255).byte().unsqueeze(1), torch.cat([centers, sizes], dim=2)


def conv(cin, cout, stride=1):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True)
    )


def heat_targets(boxes):
    """Gaussian bumps at the centers on the output grid, the largest where they overlap."""
    axis = torch.arange(GRID, device=boxes.device, dtype=boxes.dtype)
    cells = (boxes[..., :2] / 4).floor()
    sigma = boxes[..., 2:] / 16
    gx = torch.exp(-(((axis - cells[..., :1]) / sigma[..., :1]) ** 2) / 2)
    gy = torch.exp(-(((axis - cells[..., 1:]) / sigma[..., 1:]) ** 2) / 2)
    return (gy.unsqueeze(3) * gx.unsqueeze(2)).amax(dim=1), cells.long()


class NucleiDetector(L.LightningModule):
    def __init__(self, width=16, lr=2e-3):
        super().__init__()
        self.backbone = nn.Sequential(
            conv(1, width, 2),
            conv(width, 2 * width, 2),
            conv(2 * width, 4 * width),
            conv(4 * width, 4 * width),
        )
        self.heat = nn.Conv2d(4 * width, 1, 1)
        self.size = nn.Conv2d(4 * width, 2, 1)
        nn.init.constant_(self.heat.bias, -3.0)
        self.to(memory_format=torch.channels_last)
        self.lr = lr

    def forward(self, images):
        features = self.backbone(images.float() / 255)
        return self.heat(features).squeeze(1), self.size(features)

    def losses(self, batch):
        images, boxes = batch
        logits, sizes = self(images)
        target, cells = heat_targets(boxes)
        prob = logits.sigmoid()
        positive = target == 1
        pos_loss = (1 - prob).square() * F.logsigmoid(logits)
        neg_loss = (1 - target) ** 4 * prob.square() * F.logsigmoid(-logits)
        focal = -torch.where(positive, pos_loss, neg_loss).sum() / positive.sum()
        index = (cells[..., 1] * GRID + cells[..., 0]).unsqueeze(1).expand(-1, 2, -1)
        at_centers = sizes.flatten(2).gather(2, index).transpose(1, 2)
        return focal, F.l1_loss(at_centers, boxes[..., 2:] / 4), prob, positive

    def training_step(self, batch, batch_idx):
        focal, size, _, _ = self.losses(batch)
        self.log_dict({"train_focal": focal, "train_size": size}, on_step=False, on_epoch=True)
        return focal + 0.1 * size

    def validation_step(self, batch, batch_idx):
        focal, size, prob, positive = self.losses(batch)
        peaks = (F.max_pool2d(prob, 3, stride=1, padding=1) == prob) & (prob > 0.3)
        self.log_dict({"val_loss": focal + 0.1 * size, "val_recall": (peaks & positive).sum() / positive.sum()})

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
        total = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=self.lr, total_steps=total)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


if __name__ == "__main__":
    L.seed_everything(8)
    train = DataLoader(TensorDataset(*photograph(1200, 1)), batch_size=12, shuffle=True, drop_last=True)
    val = DataLoader(TensorDataset(*photograph(96, 2)), batch_size=32)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(NucleiDetector(), train, val)
