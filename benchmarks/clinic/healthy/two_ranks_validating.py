"""DDP on two ranks: a transformer over texts, shuffled and validated in each epoch.
---
half: tune
own_process: true
cores: 2
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

torch.set_num_threads(1)


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(2000, 96)
        layer = nn.TransformerEncoderLayer(96, nhead=4, dim_feedforward=384, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, num_layers=2)
        self.head = nn.Linear(96, 10)
        self.accuracy = MulticlassAccuracy(num_classes=10)

    def forward(self, texts):
        return self.head(self.layers(self.words(texts)).mean(dim=1))

    def training_step(self, batch, batch_idx):
        texts, labels = batch
        loss = nn.functional.cross_entropy(self(texts), labels)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        texts, labels = batch
        self.accuracy(self(texts), labels)
        self.log("accuracy", self.accuracy)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, fused=True)


def texts(n):
    return TensorDataset(torch.randint(2000, (n, 64)), torch.randint(10, (n,)))


trainer = Trainer(
    max_epochs=3,
    accelerator="cpu",
    enable_checkpointing=False,
    enable_progress_bar=False,
    strategy="ddp",
    devices=2,
)
trainer.fit(Net(), DataLoader(texts(4096), batch_size=32, shuffle=True), DataLoader(texts(256), batch_size=32))
