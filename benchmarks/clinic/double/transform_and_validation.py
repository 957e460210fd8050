"""A transform in Python costs most, validation a third.
---
expect: PD107
second: PD601
also:
  PD601: certain, whereas what a faster transform leaves is not known
  PD101: a worker overlaps the transform with the step, and what it gains was probed
half: score
cores: 2
fix:
  self.darken(self.images[index]): self.images[index] * 0.9**40
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


class Images(Dataset):
    def __init__(self, n_images):
        self.images = torch.rand(n_images, 400)

    def __len__(self):
        return len(self.images)

    def darken(self, image):
        pixels = []
        for pixel in image.tolist():
            for _ in range(40):
                pixel = pixel * 0.9
            pixels.append(pixel)
        return torch.tensor(pixels)

    def __getitem__(self, index):
        return self.darken(self.images[index])


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(400, 1024), nn.Linear(1024, 1)

    def forward(self, x):
        hidden = self.first(x)
        for _ in range(16):
            hidden = nn.functional.gelu(hidden)
        return self.last(hidden)

    def training_step(self, batch, batch_idx):
        return self(batch).square().mean()

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self(batch).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


loader, val_loader = DataLoader(Images(480), batch_size=16), DataLoader(torch.rand(20, 640, 400), batch_size=None)

trainer = Trainer(
    max_epochs=4,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader, val_loader)
