"""Records travel as dictionaries of numbers and become a tensor, number by number, in collate_fn.
---
expect: PD108
half: tune
fix:
  collate_fn=to_tensor: collate_fn=to_tensor_at_once
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Records(Dataset):
    def __init__(self):
        self.records = [{f"field{n}": n * index % 7 / 7 for n in range(400)} for index in range(320)]
        self.rows = torch.tensor([list(record.values()) for record in self.records])

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        return self.records[index]


def to_tensor(records):
    names = sorted(records[0], key=lambda name: (len(name), name))
    rows = [[torch.tensor(record[name]) for name in names] for record in records]  # costs time
    return torch.stack([torch.stack(row) for row in rows])


def to_tensor_at_once(records):
    return torch.tensor([list(record.values()) for record in records])


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


loader = DataLoader(Records(), batch_size=8, shuffle=True, collate_fn=to_tensor)

trainer = Trainer(
    max_epochs=6,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
