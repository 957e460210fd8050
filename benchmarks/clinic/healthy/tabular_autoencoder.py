"""A denoising autoencoder on standardized tabular data in bfloat16 autocast, with a validation pass at the end of each
epoch.
---
half: score
"""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset


class TableAutoencoder(LightningModule):
    def __init__(self, columns=256, width=832, code=128, dropout=0.1):
        super().__init__()
        self.noise = nn.Dropout(dropout)
        self.encoder = nn.Sequential(nn.Linear(columns, width), nn.ReLU(), nn.Linear(width, code))
        self.decoder = nn.Sequential(nn.Linear(code, width), nn.ReLU(), nn.Linear(width, columns))

    def forward(self, x):
        return self.decoder(self.encoder(self.noise(x)))

    def training_step(self, batch, batch_idx):
        (x,) = batch
        loss = F.mse_loss(self(x), x)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        (x,) = batch
        self.log("val_loss", F.mse_loss(self(x), x), batch_size=len(x))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


def batched(table, batch_size, shuffle):
    data = TensorDataset(table)
    order = RandomSampler(data) if shuffle else SequentialSampler(data)
    return DataLoader(data, sampler=BatchSampler(order, batch_size, drop_last=shuffle), batch_size=None)


if __name__ == "__main__":
    seed_everything(13)
    factors = torch.randn(31_744, 24)
    table = factors @ torch.randn(24, 256) / 24**0.5 + 0.2 * torch.randn(31_744, 256)
    table = (table - table.mean(dim=0)) / table.std(dim=0)
    train, val = table[:30_720], table[30_720:]
    trainer = Trainer(
        max_epochs=4,
        accelerator="cpu",
        precision="bf16-mixed",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(TableAutoencoder(), batched(train, 512, shuffle=True), batched(val, 1024, shuffle=False))
