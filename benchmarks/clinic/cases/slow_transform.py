"""Each sample is changed pixel by pixel in a Python loop.
---
expect: PD107
half: tune
cores: 2
fix:
  "self.darken(image)": "image * 0.5"
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


class Images(Dataset):
    def __init__(self):
        self.images = torch.rand(640, 400)

    def __len__(self):
        return len(self.images)

    def darken(self, image):
        return torch.tensor([pixel * 0.5 for pixel in image.tolist() for _ in range(8)][::8])

    def __getitem__(self, index):
        image = self.images[index]
        return self.darken(image)


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(400, 1024), nn.Linear(1024, 1)

    def training_step(self, batch, batch_idx):
        hidden = self.first(batch)
        for _ in range(10):
            hidden = nn.functional.gelu(hidden)
        return self.last(hidden).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


Trainer(max_epochs=5, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False).fit(
    Net(), DataLoader(Images(), batch_size=16, shuffle=True)
)
