"""Two workers compute samples with four threads each on two cores.
---
expect:
- PD102
- PD803
half: tune
cores: 2
fix:
  torch.set_num_threads(4): torch.set_num_threads(1)
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


def many_threads(worker_id):
    torch.set_num_threads(4)


class Projected(Dataset):
    def __init__(self):
        self.rows = torch.rand(1280, 256)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        image = self.rows[index].outer(self.rows[index])
        for _ in range(8):
            image = torch.tanh(image * 1.01 + 0.1)
        return image.mean(0)


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(256, 1024), nn.Linear(1024, 1)

    def training_step(self, batch, batch_idx):
        hidden = self.first(batch)
        for _ in range(8):
            hidden = nn.functional.gelu(hidden)
        return self.last(hidden).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


loader = DataLoader(
    Projected(), batch_size=16, shuffle=True, num_workers=2, persistent_workers=True, worker_init_fn=many_threads
)

trainer = Trainer(
    max_epochs=3,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
