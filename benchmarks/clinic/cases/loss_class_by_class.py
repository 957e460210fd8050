"""The loss is summed class by class, in a loop over two hundred of them.
---
expect: PD304
half: score
fix:
  return self.by_class(logits, labels): return nn.functional.binary_cross_entropy_with_logits(logits, labels)
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 1024), nn.Linear(1024, 200)

    def by_class(self, logits, labels):
        total = 0.0
        for k in range(logits.shape[1]):
            total = total + nn.functional.binary_cross_entropy_with_logits(logits[:, k], labels[:, k])
        return total / logits.shape[1]

    def training_step(self, batch, batch_idx):
        rows, labels = batch
        logits = self.last(nn.functional.gelu(self.first(rows)))
        return self.by_class(logits, labels)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


data = TensorDataset(torch.rand(3200, 64), torch.rand(3200, 200).round())
batches = BatchSampler(RandomSampler(data), batch_size=64, drop_last=True)
loader = DataLoader(data, sampler=batches, batch_size=None)

trainer = Trainer(
    max_epochs=4,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
