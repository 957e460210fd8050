"""A small residual network that classifies synthetic textures; in-memory data, whole-batch indexing,
channels-last convolutions.
---
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

CLASSES = 8


def make_textures(n, size=32, seed=0):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (n,), generator=g)
    yy, xx = torch.meshgrid(torch.linspace(0, 1, size), torch.linspace(0, 1, size), indexing="ij")
    angle = (torch.pi * (y + 0.6 * torch.rand(n, generator=g)) / CLASSES)[:, None, None]
    freq = 6 + 8 * torch.rand(n, 1, 1, generator=g)
    phase = 6.3 * torch.rand(n, 1, 1, generator=g)
    wave = torch.sin(2 * torch.pi * freq * (xx * angle.cos() + yy * angle.sin()) + phase)
    tint = 0.5 + torch.rand(n, 3, 1, 1, generator=g)
    x = tint * wave[:, None] + 0.8 * torch.randn(n, 3, size, size, generator=g)
    return x.contiguous(memory_format=torch.channels_last), y


def conv_bn(cin, cout, stride=1, kernel=3):
    return nn.Sequential(nn.Conv2d(cin, cout, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(cout))


class Residual(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.a, self.b = conv_bn(cin, cout, stride), conv_bn(cout, cout)
        self.skip = conv_bn(cin, cout, stride, kernel=1) if stride > 1 else nn.Identity()

    def forward(self, x):
        return F.relu(self.b(F.relu(self.a(x), inplace=True)) + self.skip(x), inplace=True)


class TextureNet(L.LightningModule):
    def __init__(self, width=32):
        super().__init__()
        w = width
        self.net = nn.Sequential(
            conv_bn(3, w, stride=2),
            nn.ReLU(inplace=True),
            Residual(w, w, 1),
            Residual(w, 2 * w, 2),
            Residual(2 * w, 4 * w, 2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4 * w, CLASSES),
        )

    def training_step(self, batch, batch_idx):
        x, y = batch
        if torch.rand(()) < 0.5:
            x = x.roll(int(torch.randint(1, 32, ())), dims=3)
        loss = F.cross_entropy(self.net(x), y, label_smoothing=0.05)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        acc = (self.net(x).argmax(1) == y).float().mean()
        self.log("val_acc", acc, batch_size=len(y))

    def configure_optimizers(self):
        opt = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True, fused=True)
        sched = torch.optim.lr_scheduler.OneCycleLR(
            opt, max_lr=0.1, total_steps=self.trainer.estimated_stepping_batches
        )
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


def batches(data, sampler, size):
    return DataLoader(data, sampler=BatchSampler(sampler(data), size, drop_last=False), batch_size=None)


if __name__ == "__main__":
    L.seed_everything(4)
    train = batches(TensorDataset(*make_textures(9216)), RandomSampler, 64)
    val = batches(TensorDataset(*make_textures(1024, seed=1)), SequentialSampler, 256)
    trainer = L.Trainer(
        accelerator="cpu",
        precision="bf16-mixed",
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(TextureNet().to(memory_format=torch.channels_last), train, val)
