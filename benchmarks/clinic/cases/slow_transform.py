"""Each sample is changed pixel by pixel in a Python loop.
---
expect: PD107
half: tune
fix:
  self.darken(self.images[index]): self.images[index] * 0.9**8
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self):
        self.images = torch.rand(640, 400)

    def __len__(self):
        return len(self.images)

    def darken(self, image):
        pixels = []
        for pixel in image.tolist():
            for _ in range(8):  # costs time
                pixel = pixel * 0.9  # costs time
            pixels.append(pixel)  # costs time
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

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


loader = DataLoader(Images(), batch_size=16, shuffle=True)

trainer = Trainer(
    max_epochs=5,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
