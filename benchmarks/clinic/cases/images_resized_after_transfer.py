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
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


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
        images = [Image.fromarray(image) for image in batch[0].numpy()]
        small = [np.asarray(image.resize((16, 16), Image.LANCZOS)) for image in images]  # costs time
        return torch.from_numpy(np.stack(small)).flatten(1) / 255

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


data = TensorDataset(torch.randint(256, (960, 192, 192), dtype=torch.uint8))
batches = BatchSampler(RandomSampler(data), batch_size=16, drop_last=True)
loader = DataLoader(data, sampler=batches, batch_size=None)

trainer = Trainer(
    max_epochs=4,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
