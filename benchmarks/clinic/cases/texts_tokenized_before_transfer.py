"""on_before_batch_transfer splits each text of the batch into words with a regular expression.
---
expect: [PD511, PD504]
half: tune
fix:
  "WORD.findall(text)": "text.split()"
"""

import random
import re

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader

WORD = re.compile(r"[a-z]+(?:'[a-z]+)?|[0-9]+")
WORDS = ["model", "the", "a", "gradient", "it's", "42", "of", "learning"]
TEXTS = [" ".join(random.choices(WORDS, k=4000)) for _ in range(64)]


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 1024), nn.Linear(1024, 1)

    def forward(self, x):
        hidden = self.first(x)
        for _ in range(8):
            hidden = nn.functional.gelu(hidden)
        return self.last(hidden)

    def training_step(self, batch, batch_idx):
        return self(batch).square().mean()

    def on_before_batch_transfer(self, batch, dataloader_idx):
        words = [WORD.findall(text) for text in batch]  # costs time
        return torch.tensor([[len(word) / 10 for word in some[:64]] for some in words])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


loader = DataLoader(TEXTS * 15, batch_size=16, shuffle=True, collate_fn=list)

trainer = Trainer(
    max_epochs=4,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
