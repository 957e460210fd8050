"""A worker sends 200 small tensors a batch.
---
expect: PD109
half: tune
cores: 2
fix:
  collate_fn=keep_apart: collate_fn=join
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


class Fields(Dataset):
    def __init__(self):
        self.fields = list(torch.rand(200, 2))

    def __len__(self):
        return 800

    def __getitem__(self, index):
        return {f"field{n}": field for n, field in enumerate(self.fields)}


def keep_apart(samples):
    return samples[0]


def join(samples):
    return {"all": torch.cat(list(samples[0].values()))}


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
        return self(torch.cat(list(batch.values())).expand(16, -1)).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


loader = DataLoader(Fields(), batch_size=4, shuffle=True, num_workers=1, persistent_workers=True, collate_fn=keep_apart)

trainer = Trainer(
    max_epochs=5,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
