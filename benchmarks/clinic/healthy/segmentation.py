"""A small network goes down and up again and tells the class of each pixel.
---
half: score
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU())
        self.down = nn.Sequential(nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(64, 32, 2, stride=2)
        self.last = nn.Conv2d(64, 4, 1)

    def forward(self, images):
        wide = self.first(images)
        return self.last(torch.cat([wide, self.up(self.down(wide))], dim=1))

    def training_step(self, batch, batch_idx):
        images, classes = batch
        return nn.functional.cross_entropy(self(images), classes)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, fused=True)


data = TensorDataset(torch.rand(800, 3, 32, 32), torch.randint(4, (800, 32, 32)))
loader = DataLoader(data, sampler=BatchSampler(RandomSampler(data), 16, drop_last=True), batch_size=None)

trainer = Trainer(
    max_epochs=6,
    accelerator="cpu",
    precision="bf16-mixed",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
