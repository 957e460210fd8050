"""DDP where the second rank's sequences are three times as long as those of the first.
---
expect:
- PD704
- PD701
half: score
own_process: true
cores: 2
fix:
  16 if rank == 0 else 48: '32'
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

torch.set_num_threads(1)


class Sequences(IterableDataset):
    def __iter__(self):
        is_started = torch.distributed.is_initialized()
        rank = torch.distributed.get_rank() if is_started else 0
        length = 16 if rank == 0 else 48
        for _ in range(80):
            yield torch.rand(16, length, 96)


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.recurrent, self.last = nn.GRU(96, 128, batch_first=True), nn.Linear(128, 1)

    def training_step(self, batch, batch_idx):
        return self.last(self.recurrent(batch)[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


loader = DataLoader(Sequences(), batch_size=None)

trainer = Trainer(
    max_epochs=4,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    strategy="ddp",
    devices=2,
    use_distributed_sampler=False,
)
trainer.fit(Net(), loader)
