"""An autoencoder is fine-tuned as a classifier; the step still decodes, but no loss uses the reconstruction.
---
expect: PD333
half: tune
fix:
  "z, _ = self.autoencoder(x)": "z = self.autoencoder.encoder(x)"
"""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SIZE, CLASSES = 32, 5


def make_images(n=3200):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(CLASSES, (n,), generator=generator)
    images = torch.randn(n, 1, SIZE, SIZE, generator=generator)
    waves = torch.sin(torch.arange(SIZE) * (1 + labels[:, None]) / 4)
    return TensorDataset(images + waves[:, None, None, :], labels)


class Autoencoder(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, width, 3, 2, 1), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, 2, 1), nn.ReLU()
        )
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(2 * width, 2 * width, 4, 2, 1), nn.ReLU(),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.ReLU(), nn.Conv2d(width, 1, 3, 1, 1),
        )  # fmt: skip

    def forward(self, x):
        z = self.encoder(x)
        return z, self.decoder(z)


class Classifier(LightningModule):
    def __init__(self):
        super().__init__()
        self.autoencoder = Autoencoder()
        self.head = nn.Linear(48, CLASSES)

    def training_step(self, batch, batch_idx):
        x, labels = batch
        z, _ = self.autoencoder(x)
        return F.cross_entropy(self.head(z.mean((2, 3))), labels)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    seed_everything(0)
    loader = DataLoader(make_images(), batch_size=32, shuffle=True)
    trainer = Trainer(accelerator="cpu", max_epochs=4, logger=False, enable_checkpointing=False,
                      enable_progress_bar=False)  # fmt: skip
    trainer.fit(Classifier(), loader)
