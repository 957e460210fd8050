"""DDP on two ranks, gradients accumulated over four batches and clipped.
---
half: tune
own_process: true
cores: 2
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(96, 1536), nn.Linear(1536, 8)

    def forward(self, x):
        hidden = self.first(x)
        for _ in range(48):
            hidden = nn.functional.gelu(hidden)
        return self.last(hidden)

    def training_step(self, batch, batch_idx):
        return self(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


loader = DataLoader(TensorDataset(torch.rand(12288, 96)), batch_size=256)

trainer = Trainer(
    max_epochs=3,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    strategy="ddp",
    devices=2,
    accumulate_grad_batches=4,
    gradient_clip_val=1.0,
)
trainer.fit(Net(), loader)
