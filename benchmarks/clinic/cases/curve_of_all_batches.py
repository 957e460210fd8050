"""Each step gathers its outputs and looks at the median of all that were gathered so far.
---
expect:
- PD605
- PD405
half: tune
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 2048), nn.Linear(2048, 1)
        self.gathered = []

    def training_step(self, batch, batch_idx):
        hidden = self.first(batch[0])
        for _ in range(4):
            hidden = nn.functional.gelu(hidden)
        output = self.last(hidden)
        self.gathered.append(output.detach())
        self.center = torch.cat(self.gathered).median()
        return output.square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


data = TensorDataset(torch.rand(64 * 512, 64))
batches = BatchSampler(RandomSampler(data), batch_size=512, drop_last=True)
loader = DataLoader(data, sampler=batches, batch_size=None)

trainer = Trainer(
    max_epochs=8,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
