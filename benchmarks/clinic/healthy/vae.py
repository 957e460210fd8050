"""A variational autoencoder; its two losses are logged every fifty steps, a little validation after each epoch.
---
half: tune
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(400, 512), nn.GELU(), nn.Linear(512, 64))
        self.decode = nn.Sequential(nn.Linear(32, 512), nn.GELU(), nn.Linear(512, 400))

    def losses(self, x):
        mean, log_var = self.encode(x).chunk(2, dim=1)
        z = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        prior = -0.5 * (1 + log_var - mean.square() - log_var.exp()).mean()
        return nn.functional.mse_loss(self.decode(z), x), prior

    def training_step(self, batch, batch_idx):
        rebuilt, prior = self.losses(batch[0])
        self.log_dict({"rebuilt": rebuilt, "prior": prior})
        return rebuilt + 0.01 * prior

    def validation_step(self, batch, batch_idx):
        self.log("val_rebuilt", self.losses(batch[0])[0])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


def make_loader(n_batches):
    data = TensorDataset(torch.rand(512 * n_batches, 400))
    return DataLoader(data, sampler=BatchSampler(RandomSampler(data), 512, drop_last=True), batch_size=None)


trainer = Trainer(
    max_epochs=4,
    accelerator="cpu",
    precision="bf16-mixed",
    logger=CSVLogger("logs"),
    log_every_n_steps=50,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), make_loader(100), make_loader(6))
