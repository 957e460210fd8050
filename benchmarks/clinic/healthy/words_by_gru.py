"""A small GRU reads sentences of twenty words and tells their class, with momentum.
---
half: tune
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.words, self.reader, self.last = nn.Embedding(500, 24), nn.GRU(24, 32, batch_first=True), nn.Linear(32, 3)

    def training_step(self, batch, batch_idx):
        words, classes = batch
        _, state = self.reader(self.words(words))
        return nn.functional.cross_entropy(self.last(state[0]), classes)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, fused=True)


batches = [(torch.randint(500, (16, 20)), torch.randint(3, (16,))) for _ in range(300)]
loader = DataLoader(batches, batch_size=None, shuffle=True)

trainer = Trainer(
    max_epochs=2,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
