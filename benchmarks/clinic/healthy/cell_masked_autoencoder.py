"""Trains a masked autoencoder on microscopy-like cell images: the encoder sees a quarter of the patches, a light
decoder paints the rest.
---
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SIZE, PATCH = 64, 8
TOKENS = (SIZE // PATCH) ** 2


def make_cells(count, cells=5, seed=0):
    gen = torch.Generator().manual_seed(seed)
    axis = torch.linspace(0, 1, SIZE)
    image = 0.05 * torch.randn(count, SIZE, SIZE, generator=gen)
    for _ in range(cells):
        cx, cy = torch.rand(2, count, 1, generator=gen)
        radius = 0.03 + 0.07 * torch.rand(count, 1, generator=gen)
        gx = torch.exp(-((axis - cx) / radius).square())
        gy = torch.exp(-((axis - cy) / radius).square())
        image += gy.unsqueeze(2) * gx.unsqueeze(1)
    return image


def patchify(image):
    tiles = image.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH)
    return tiles.flatten(3).flatten(1, 2)


def transformer(width, depth):
    layer = nn.TransformerEncoderLayer(
        width, nhead=4, dim_feedforward=4 * width, dropout=0.0, batch_first=True, norm_first=True
    )
    return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)


class MaskedAutoencoder(L.LightningModule):
    def __init__(self, width=128, depth=3, narrow=64, keep=16):
        super().__init__()
        self.keep = keep
        self.embed = nn.Linear(PATCH**2, width)
        self.position = nn.Parameter(0.02 * torch.randn(TOKENS, width))
        self.encoder = transformer(width, depth)
        self.bridge = nn.Linear(width, narrow)
        self.blank = nn.Parameter(torch.zeros(narrow))
        self.decoder_position = nn.Parameter(0.02 * torch.randn(TOKENS, narrow))
        self.decoder = transformer(narrow, 1)
        self.paint = nn.Linear(narrow, PATCH**2)

    def training_step(self, batch, batch_idx):
        (image,) = batch
        patches = patchify(image)
        count = len(patches)
        order = torch.rand(count, TOKENS, device=self.device).argsort(dim=1)
        seen, hidden = order[:, : self.keep], order[:, self.keep :]
        rows = torch.arange(count, device=self.device).unsqueeze(1)
        latent = self.encoder(self.embed(patches[rows, seen]) + self.position[seen])
        tokens = torch.cat([self.bridge(latent), self.blank.expand(count, TOKENS - self.keep, -1)], dim=1)
        painted = self.paint(self.decoder(tokens + self.decoder_position[order])[:, self.keep :])
        loss = F.mse_loss(painted, patches[rows, hidden])
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-4, weight_decay=0.05, fused=True)


if __name__ == "__main__":
    L.seed_everything(0)
    loader = DataLoader(TensorDataset(make_cells(1200)), batch_size=24, shuffle=True, drop_last=True)
    trainer = L.Trainer(max_epochs=4, accelerator="cpu", gradient_clip_val=1.0, logger=False)
    trainer.fit(MaskedAutoencoder(), loader)
