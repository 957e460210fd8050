"""A masked autoencoder of image patches: a quarter of the patches is encoded, all are reconstructed.
---
half: score
"""

import lightning as L
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

N_PATCHES = 64
N_KEPT = 16
PIXELS = 48
WIDTH = 96


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mix = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256), nn.GELU(), nn.Linear(256, WIDTH))

    def forward(self, x):
        q, k, v = self.mix(self.norm(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.feed(x)


class MaskedAutoencoder(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(PIXELS, WIDTH)
        self.places = nn.Parameter(torch.randn(N_PATCHES, WIDTH) * 0.02)
        self.hidden = nn.Parameter(torch.zeros(WIDTH))
        self.encoder = nn.Sequential(Block(), Block())
        self.decoder = nn.Sequential(Block(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, PIXELS))

    def training_step(self, batch, batch_idx):
        (patches,) = batch
        order = torch.rand(patches.shape[:2], device=self.device).argsort(1)
        kept = order[:, :N_KEPT].unsqueeze(-1).expand(-1, -1, WIDTH)
        encoded = self.encoder((self.embed(patches) + self.places).gather(1, kept))
        tokens = self.hidden.expand(*patches.shape[:2], -1).scatter(1, kept, encoded)
        masked = order[:, N_KEPT:].unsqueeze(-1).expand(-1, -1, PIXELS)
        loss = nn.functional.mse_loss(self.decoder(tokens + self.places).gather(1, masked), patches.gather(1, masked))
        self.log("train/loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    L.seed_everything(1)
    images = TensorDataset(torch.randn(3200, N_PATCHES, PIXELS))
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        MaskedAutoencoder(),
        DataLoader(images, sampler=BatchSampler(RandomSampler(images), 32, drop_last=True), batch_size=None),
    )
