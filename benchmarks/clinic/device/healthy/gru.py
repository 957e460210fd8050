"""A GRU by cuDNN over 192 tokens, too narrow to gain from lower precision.
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
        self.embed, self.head = nn.Embedding(256, 256), nn.Linear(256, 256)
        self.gru = nn.GRU(256, 256, num_layers=2, batch_first=True)

    def training_step(self, tokens, batch_idx):
        hidden, _ = self.gru(self.embed(tokens[:, :-1]))
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), tokens[:, 1:].flatten())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-4, fused=True)


batches = list(torch.randint(256, (150, 128, 192 + 1)))
loader = DataLoader(batches, batch_size=None, shuffle=True, pin_memory=True)

trainer = Trainer(
    max_epochs=3,
    accelerator="cuda",
    devices=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
