"""Two networks trained in turns by manual optimization.
---
half: score
"""

import functools

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


def perceptron(n_in, n_out):
    return nn.Sequential(nn.Linear(n_in, 2048), nn.GELU(), nn.GELU(), nn.GELU(), nn.GELU(), nn.Linear(2048, n_out))


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator, self.critic = perceptron(16, 64), perceptron(64, 1)

    def training_step(self, batch, batch_idx):
        (real,) = batch
        of_generator, of_critic = self.optimizers()
        fake = self.generator(torch.randn(len(real), 16))
        of_critic.zero_grad()
        self.manual_backward(self.critic(fake.detach()).mean() - self.critic(real).mean())
        of_critic.step()
        of_generator.zero_grad()
        self.manual_backward(-self.critic(fake).mean())
        of_generator.step()

    def configure_optimizers(self):
        make = functools.partial(torch.optim.Adam, lr=1e-4, fused=True)
        return make(self.generator.parameters()), make(self.critic.parameters())


data = TensorDataset(torch.rand(3200, 64))
batches = BatchSampler(RandomSampler(data), batch_size=64, drop_last=True)
loader = DataLoader(data, sampler=batches, batch_size=None)

trainer = Trainer(
    max_epochs=5,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    precision="bf16-mixed",
)
trainer.fit(Net(), loader)
