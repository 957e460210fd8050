"""A callback renews an average of the weights after each step, which costs most; twenty metrics a step cost some.
---
expect: PD504
second: PD502
also:
  PD301: the same step in bf16, measured by a replay where the CPU has fast 16-bit products
half: tune
fix:
  trainer.global_step % 1: trainer.global_step % 25
"""

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class Average(Callback):
    def on_fit_start(self, trainer, pl_module):
        self.kept = {name: weight.detach().clone() for name, weight in pl_module.state_dict().items()}

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step % 1 == 0:
            for name, weight in pl_module.state_dict().items():
                self.kept[name] = 0.99 * self.kept[name] + 0.01 * weight


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(768, 768) for _ in range(10))

    def training_step(self, batch, batch_idx):
        hidden = batch[0]
        for layer in self.layers:
            hidden = nn.functional.relu(layer(hidden))
        loss = hidden.square().mean()
        for index in range(20):
            self.log(f"metric_{index}", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3, fused=True)


data = TensorDataset(torch.rand(1920, 768))
batches = BatchSampler(RandomSampler(data), batch_size=32, drop_last=True)
loader = DataLoader(data, sampler=batches, batch_size=None)

trainer = Trainer(
    max_epochs=5,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    callbacks=[Average()],
)
trainer.fit(Net(), loader)
