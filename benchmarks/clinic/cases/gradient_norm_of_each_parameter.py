"""A callback takes the norm of each parameter's gradient after each backward pass and keeps it as a number.
---
expect: PD504
half: tune
fix:
  callbacks=[GradientNorms()]: callbacks=[]
"""

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class GradientNorms(Callback):
    def __init__(self):
        self.norms = {}

    def on_after_backward(self, trainer, pl_module):
        for name, parameter in pl_module.named_parameters():
            self.norms[name] = parameter.grad.norm(2).item(), parameter.grad.abs().max().item()


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(128, 128) for _ in range(40))

    def training_step(self, batch, batch_idx):
        hidden = batch[0]
        for layer in self.layers:
            hidden = hidden + 0.1 * nn.functional.relu(layer(hidden))
        return hidden.square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-6, fused=True)


data = TensorDataset(torch.rand(3200, 128))
batches = BatchSampler(RandomSampler(data), batch_size=64, drop_last=True)
loader = DataLoader(data, sampler=batches, batch_size=None)

trainer = Trainer(
    max_epochs=6,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    callbacks=[GradientNorms()],
)
trainer.fit(Net(), loader)
