"""A vector-quantised autoencoder compresses birdsong spectrograms, and it finds the nearest code by subtracting every
code from every frame in one large broadcast tensor.
---
expect: PD326
fix:
  ? |2
                gap = flat[:, None, :] - codes[None, :, :]  # costs time
                index = gap.square().sum(-1).argmin(1)  # costs time
  : |2
                index = torch.addmm(codes.square().sum(1), flat, codes.t(), alpha=-2).argmin(1)
half: score
"""

import lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BANDS, FRAMES, DIM, CODES = 64, 128, 32, 384


def songs(count):
    gen = torch.Generator().manual_seed(77)
    time = torch.linspace(0, 1, FRAMES)
    band = torch.arange(BANDS, dtype=torch.float32)
    base, sweep, rate = (torch.rand(3, count, 1, generator=gen)).unbind(0)
    pitch = 12 + 36 * base + 10 * sweep * torch.sin(2 * torch.pi * (2 + 6 * rate) * time)
    tone = torch.exp(-(((band[None, :, None] - pitch[:, None, :]) / 2) ** 2))
    return TensorDataset(tone + 0.05 * torch.randn(count, BANDS, FRAMES, generator=gen))


class Quantizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.codes = nn.Embedding(CODES, DIM)
        nn.init.uniform_(self.codes.weight, -0.5, 0.5)

    def forward(self, latent):
        flat = latent.transpose(1, 2).reshape(-1, DIM)
        with torch.no_grad():
            codes = self.codes.weight
            gap = flat[:, None, :] - codes[None, :, :]  # costs time
            index = gap.square().sum(-1).argmin(1)  # costs time
        chosen = self.codes(index)
        loss = F.mse_loss(chosen, flat.detach()) + 0.25 * F.mse_loss(flat, chosen.detach())
        passed = flat + (chosen - flat).detach()
        return passed.view(latent.shape[0], -1, DIM).transpose(1, 2), loss


class SongCodec(lightning.LightningModule):
    def __init__(self, width=128):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv1d(BANDS, width, 4, stride=2, padding=1),
            nn.GELU(),
            nn.Conv1d(width, width, 3, padding=1),
            nn.GELU(),
            nn.Conv1d(width, DIM, 1),
        )
        self.quantizer = Quantizer()
        self.decoder = nn.Sequential(
            nn.Conv1d(DIM, width, 3, padding=1),
            nn.GELU(),
            nn.Conv1d(width, width, 3, padding=1),
            nn.GELU(),
            nn.ConvTranspose1d(width, BANDS, 4, stride=2, padding=1),
        )

    def forward(self, song):
        passed, loss = self.quantizer(self.encoder(song))
        return self.decoder(passed), loss

    def training_step(self, batch, batch_idx):
        (song,) = batch
        again, loss = self(song)
        return F.mse_loss(again, song) + loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    lightning.seed_everything(12, verbose=False)
    loader = DataLoader(songs(8 * 140), batch_size=8, shuffle=True)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(SongCodec(), loader)
