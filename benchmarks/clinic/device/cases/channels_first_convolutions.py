"""A residual network in bfloat16 whose images and weights are stored channels first.
---
expect: PD306
half: tune
with:
- channels-last
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader


class Block(nn.Module):
    def __init__(self, n_in, n_out, stride):
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(n_in, n_out, 3, stride, padding=1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU(inplace=True)
        )
        self.second = nn.Sequential(nn.Conv2d(n_out, n_out, 3, padding=1, bias=False), nn.BatchNorm2d(n_out))
        self.shortcut = nn.Conv2d(n_in, n_out, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x):
        return nn.functional.relu(self.shortcut(x) + self.second(self.first(x)), inplace=True)


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 64, 3, padding=1, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            Block(64, 64, 1),
            Block(64, 64, 1),
            Block(64, 128, 2),
            Block(128, 128, 1),
            Block(128, 256, 2),
            Block(256, 256, 1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(256, 10),
        )

    def training_step(self, batch, batch_idx):
        images, labels = batch
        return nn.functional.cross_entropy(self.layers(images / 255), labels)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9, fused=True)


def make_batch():
    return torch.randint(256, (256, 3, 64, 64), dtype=torch.uint8), torch.randint(10, (256,))


batches = [make_batch() for _ in range(11)] * 10
loader = DataLoader(batches, batch_size=None, shuffle=True, pin_memory=True)

trainer = Trainer(
    max_epochs=3,
    accelerator="cuda",
    devices=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    precision="bf16-mixed",
    benchmark=True,
)
trainer.fit(Net(), loader)
