"""A convolutional encoder learns codes of shoe prints, so that a print from the scene finds its shoe in a gallery.
Each validation asks how many query prints find their shoe, and compares each batch of queries with the gallery.
The gallery's codes are computed again for every batch of queries, though the weights stay the same meanwhile.
---
expect: PD601
fix:
  "        gallery = self(self.gallery)  # costs time": "        gallery = self.gallery_codes"
  "    def validation_step(self, batch, batch_idx):": |2-
        def on_validation_epoch_start(self):
            self.gallery_codes = self(self.gallery)

        def validation_step(self, batch, batch_idx):
half: tune
"""

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

SHOES = 200
SIDE = 32
BATCH = 32
TRAIN = 960
QUERIES = 320
QUERY_BATCH = 32


def worn_prints(soles: torch.Tensor, shoes: torch.Tensor) -> torch.Tensor:
    """Prints of the given shoes: shifted by a few pixels, with smudges and noise."""
    prints = soles[shoes]
    shifts = torch.randint(-2, 3, (len(shoes), 2)).tolist()
    prints = torch.stack([torch.roll(one, shift, dims=(1, 2)) for one, shift in zip(prints, shifts, strict=False)])
    smudges = F.interpolate(torch.rand(len(shoes), 1, 4, 4), size=SIDE, mode="bilinear")
    return prints * (smudges > 0.35) + 0.2 * torch.randn(len(shoes), 1, SIDE, SIDE)


class Prints(Dataset):
    """Prints and the number of the shoe that left them."""

    def __init__(self, soles: torch.Tensor, count: int):
        self.shoes = torch.randint(SHOES, (count,))
        self.prints = worn_prints(soles, self.shoes)

    def __len__(self) -> int:
        return len(self.shoes)

    def __getitems__(self, indices: list[int]):
        return self.prints[indices], self.shoes[indices]


def as_is(batch):
    return batch


class PrintEncoder(L.LightningModule):
    def __init__(self, gallery: torch.Tensor, width: int = 16, lr: float = 2e-3):
        super().__init__()
        self.lr = lr
        self.register_buffer("gallery", gallery, persistent=False)
        self.trunk = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(2 * width * (SIDE // 4) ** 2, 64),
        )
        self.proxies = nn.Parameter(torch.randn(SHOES, 64))

    def forward(self, prints: torch.Tensor) -> torch.Tensor:
        return F.normalize(self.trunk(prints), dim=1)

    def training_step(self, batch, batch_idx):
        prints, shoes = batch
        return F.cross_entropy(12.0 * self(prints) @ F.normalize(self.proxies, dim=1).T, shoes)

    def validation_step(self, batch, batch_idx):
        prints, shoes = batch
        gallery = self(self.gallery)  # costs time
        found = (self(prints) @ gallery.T).argmax(dim=1)
        self.log("val_found", (found == shoes).float().mean(), batch_size=len(shoes))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr, fused=True)


def main() -> None:
    L.seed_everything(9)
    soles = (F.interpolate(torch.rand(SHOES, 1, 8, 8), size=SIDE, mode="bilinear") > 0.5).float()
    train_loader = DataLoader(Prints(soles, TRAIN), batch_size=BATCH, shuffle=True, drop_last=True, collate_fn=as_is)
    val_loader = DataLoader(Prints(soles, QUERIES), batch_size=QUERY_BATCH, collate_fn=as_is)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=8,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(PrintEncoder(soles), train_loader, val_loader)
    print(f"prints that find their shoe: {trainer.callback_metrics['val_found']:.2f}")


if __name__ == "__main__":
    main()
