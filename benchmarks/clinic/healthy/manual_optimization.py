"""Two small networks take turns under manual optimization, each with an optimizer and a schedule of its own.
---
half: score
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.actor = nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))
        self.critic = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

    def training_step(self, batch, batch_idx):
        states, rewards = batch
        index = batch_idx % 2
        actions = self.actor(states)
        worth = self.critic(torch.cat([states, actions], dim=1)).squeeze(1)
        optimizer = self.optimizers()[index]
        optimizer.zero_grad()
        self.manual_backward((worth - rewards).square().mean() if index else -worth.mean())
        optimizer.step()
        if self.trainer.is_last_batch:
            self.lr_schedulers()[index].step()

    def configure_optimizers(self):
        optimizers = [torch.optim.Adam(net.parameters(), lr=1e-3, fused=True) for net in (self.actor, self.critic)]
        return optimizers, [torch.optim.lr_scheduler.ExponentialLR(each, 0.9) for each in optimizers]


batches = [(torch.rand(64, 12), torch.rand(64)) for _ in range(400)]
loader = DataLoader(batches, batch_size=None, shuffle=True)

trainer = Trainer(
    max_epochs=3,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
