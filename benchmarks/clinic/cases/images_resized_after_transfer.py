"""on_after_batch_transfer makes the images of the batch smaller with PIL, one by one.
---
expect: [PD511, PD504]
half: tune
fix:
  Image.LANCZOS: Image.NEAREST
"""

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(256, 1024), nn.Linear(1024, 1)

    def forward(self, x):
        hidden = self.first(x)
        for _ in range(8):
            hidden = nn.functional.gelu(hidden)
        return self.last(hidden)

    def training_step(self, batch, batch_idx):
        return self(batch).square().mean()

    def on_after_batch_transfer(self, batch, dataloader_idx):
        images = [Image.fromarray(image) for image in batch.numpy()]
        small = [np.asarray(image.resize((16, 16), Image.LANCZOS)) for image in images]  # costs time
        return torch.from_numpy(np.stack(small)).flatten(1) / 255

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


batches = [torch.randint(256, (16, 192, 192), dtype=torch.uint8) for _ in range(60)]
loader = DataLoader(batches, batch_size=None, shuffle=True)

trainer = Trainer(
    max_epochs=4,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
