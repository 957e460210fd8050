"""Wide layers predict ratings from embeddings of users and items; validated after each epoch, the best one kept.
---
half: score
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Embedding(3000, 128), nn.Embedding(2000, 128)
        self.layers = nn.Sequential(nn.Linear(256, 768), nn.ReLU(), nn.Linear(768, 256), nn.ReLU(), nn.Linear(256, 1))

    def loss(self, batch):
        users, items, liked = batch
        pair = torch.cat([self.users(users), self.items(items)], dim=1)
        return nn.functional.binary_cross_entropy_with_logits(self.layers(pair).squeeze(1), liked)

    def training_step(self, batch, batch_idx):
        return self.loss(batch)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, fused=True)


def make_loader(n_batches):
    n = 512 * n_batches
    data = TensorDataset(torch.randint(3000, (n,)), torch.randint(2000, (n,)), torch.randint(2, (n,)).float())
    return DataLoader(data, sampler=BatchSampler(RandomSampler(data), 512, drop_last=True), batch_size=None)


trainer = Trainer(
    max_epochs=4,
    accelerator="cpu",
    precision="bf16-mixed",
    logger=False,
    callbacks=[ModelCheckpoint(dirpath="best", monitor="val_loss")],
    enable_progress_bar=False,
)
trainer.fit(Net(), make_loader(100), make_loader(8))
