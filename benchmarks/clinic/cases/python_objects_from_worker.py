"""A worker sends each batch as lists of tens of thousands of Python numbers.
---
expect: PD109
half: tune
cores: 2
fix:
  collate_fn=as_they_are: collate_fn=as_tensor
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


class Rows(Dataset):
    def __init__(self):
        self.rows = [{str(n): index / 1600 + n / 400 for n in range(400)} for index in range(1600)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def as_they_are(samples):
    return samples


def as_tensor(samples):
    return torch.tensor([list(sample.values()) for sample in samples])


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(400, 1024), nn.Linear(1024, 1)

    def forward(self, x):
        hidden = self.first(x)
        for _ in range(2):
            hidden = nn.functional.gelu(hidden)
        return self.last(hidden)

    def training_step(self, batch, batch_idx):
        rows = batch if isinstance(batch, torch.Tensor) else self.first.weight.new_ones(len(batch), 400)
        return self(rows).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


loader = DataLoader(Rows(), batch_size=32, shuffle=True, num_workers=1, persistent_workers=True, collate_fn=as_they_are)

trainer = Trainer(
    max_epochs=5,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
