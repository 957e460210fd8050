"""Learns to recognize single coral colonies again in later photos, and validates by the nearest photo in a gallery.
The gallery of reference photos goes through the encoder again for each validation batch.
---
expect: PD601
fix:
  "def validation_step(self, batch, batch_idx):": |2-
    def on_validation_epoch_start(self):
            self.known = self(self.gallery_photos)

        def validation_step(self, batch, batch_idx):
  "known = self(self.gallery_photos)  # costs time": "known = self.known"
half: score
"""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

COLONIES = 80


def photograph(patterns: torch.Tensor, shots: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Shifted, dimmed and noisy views of each colony's pattern."""
    photos, names = [], []
    for _ in range(shots):
        shift = torch.randint(-3, 4, (2,)).tolist()
        light = 0.7 + 0.6 * torch.rand(len(patterns), 1, 1, 1)
        tint = 0.15 * torch.randn(len(patterns), 3, 1, 1)
        view = torch.roll(patterns, shift, dims=(2, 3)) * light + tint
        photos.append(view + 0.5 * torch.randn_like(view))
        names.append(torch.arange(len(patterns)))
    return torch.cat(photos), torch.cat(names)


def conv(inside: int, outside: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside), nn.ReLU(inplace=True)
    )


class ColonyMatcher(L.LightningModule):
    def __init__(self, gallery: tuple[torch.Tensor, torch.Tensor]):
        super().__init__()
        self.encoder = nn.Sequential(
            conv(3, 16, 1),
            conv(16, 32, 2),
            conv(32, 48, 1),
            conv(48, 64, 2),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(256, 64),
        )
        self.centers = nn.Parameter(torch.randn(COLONIES, 64) * 0.1)
        self.register_buffer("gallery_photos", gallery[0], persistent=False)
        self.register_buffer("gallery_names", gallery[1], persistent=False)

    def forward(self, photos: torch.Tensor) -> torch.Tensor:
        return nn.functional.normalize(self.encoder(photos), dim=1)

    def training_step(self, batch, batch_idx):
        photos, names = batch
        cosines = self(photos) @ nn.functional.normalize(self.centers, dim=1).T
        loss = nn.functional.cross_entropy(cosines * 16, names)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        photos, names = batch
        known = self(self.gallery_photos)  # costs time
        nearest = (self(photos) @ known.T).argmax(1)
        hits = (self.gallery_names[nearest] == names).float().mean()
        self.log("val_top1", hits, batch_size=len(photos))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3, weight_decay=1e-3, fused=True)


def main():
    L.seed_everything(29)
    patterns = nn.functional.interpolate(torch.randn(COLONIES, 3, 8, 8), size=(32, 32), mode="bilinear")
    train = TensorDataset(*photograph(patterns, 8))
    later = TensorDataset(*photograph(patterns, 4))
    model = ColonyMatcher(gallery=photograph(patterns, 5))
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=9,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(
        model,
        DataLoader(train, batch_size=32, shuffle=True, drop_last=True),
        DataLoader(later, batch_size=32),
    )
    print({name: round(value.item(), 4) for name, value in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
