"""A recurrent cell is written out by hand: four small operators for each of 300 time steps.
---
expect: PD304
half: score
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.decay = nn.Parameter(torch.full((16,), 0.9))

    def scan(self, series):
        state = torch.zeros(16)
        states = []
        for value in series.unbind(0):
            state = torch.tanh(self.decay * state + value)
            states.append(state)
        return torch.stack(states)

    def training_step(self, batch, batch_idx):
        return self.scan(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


loader = DataLoader(TensorDataset(torch.rand(30, 300, 16)), batch_size=None)

trainer = Trainer(
    max_epochs=4,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
