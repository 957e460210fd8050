"""A network finds the position in a building from the strengths of the access points that a phone hears.
The module gets the raw survey to make its vocabulary of access points, and saves all its arguments as hyperparameters.
So each epoch's checkpoint pickles the whole survey, hundreds of thousands of Python objects, beside small weights.
---
expect: PD602
fix:
  "        self.save_hyperparameters()  # costs time": '        self.save_hyperparameters(ignore=["survey"])'
half: tune
"""

import tempfile

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

POINTS = 120
HEARD = 32
SCANS = 7680
BATCH = 192

Survey = list[list[tuple[str, int, float]]]


def survey_building() -> tuple[Survey, torch.Tensor]:
    """Scans at random positions: address, channel and strength in dBm of the nearest access points."""
    stations = torch.rand(POINTS, 2) * 100.0
    names = [f"{3 * i % 256:02x}:{7 * i % 256:02x}:{i:02x}" for i in range(POINTS)]
    positions = torch.rand(SCANS, 2) * 100.0
    strength = -30.0 - 0.8 * torch.cdist(positions, stations) + 2.0 * torch.randn(SCANS, POINTS)
    best = strength.topk(HEARD, dim=1)
    survey = [
        [(names[i], 5180 + 20 * (i % 16), level) for i, level in zip(where, levels, strict=False)]
        for where, levels in zip(best.indices.tolist(), best.values.tolist(), strict=False)
    ]
    return survey, positions / 100.0


class Scans(Dataset):
    """Strengths in the order of the vocabulary (0: not heard) and positions, as tensors."""

    def __init__(self, survey: Survey, positions: torch.Tensor, vocabulary: dict[str, int]):
        self.levels = torch.zeros(len(survey), len(vocabulary))
        for row, scan in enumerate(survey):
            self.levels[row, [vocabulary[name] for name, _, _ in scan]] = (
                torch.tensor([level for _, _, level in scan]) / 100.0 + 1.0
            )
        self.positions = positions

    def __len__(self) -> int:
        return len(self.positions)

    def __getitems__(self, indices: list[int]):
        return self.levels[indices], self.positions[indices]


def as_is(batch):
    return batch


class WifiLocator(L.LightningModule):
    def __init__(self, survey: Survey, width: int = 256, lr: float = 1e-3):
        super().__init__()
        self.save_hyperparameters()  # costs time
        self.lr = lr
        self.vocabulary = {name: i for i, name in enumerate(sorted({name for scan in survey for name, _, _ in scan}))}
        self.layers = nn.Sequential(
            nn.Linear(len(self.vocabulary), width),
            nn.GELU(),
            nn.Linear(width, width),
            nn.GELU(),
            nn.Linear(width, width),
            nn.GELU(),
            nn.Linear(width, 2),
        )

    def forward(self, levels: torch.Tensor) -> torch.Tensor:
        return self.layers(levels)

    def training_step(self, batch, batch_idx):
        levels, positions = batch
        return F.mse_loss(self(levels), positions)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr, fused=True)


def main() -> None:
    L.seed_everything(17)
    survey, positions = survey_building()
    model = WifiLocator(survey)
    loader = DataLoader(
        Scans(survey, positions, model.vocabulary),
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        collate_fn=as_is,
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            accelerator="cpu",
            max_epochs=10,
            callbacks=[ModelCheckpoint(dirpath=folder, filename="locator")],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(model, loader)


if __name__ == "__main__":
    main()
