"""Land-cover classification of multispectral satellite tiles that lie in one .npz archive per scene. The dataset keeps
the open archives and indexes into them for every tile.
---
expect: PD107
half: score
fix:
  ? "self.scenes = [np.load(path) for path in scene_paths]"
  : "self.scenes = [dict(np.load(path)) for path in scene_paths]"
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

BANDS, SIDE, CLASSES = 6, 32, 8
SCENES, TILES_PER_SCENE = 20, 128


def write_scenes(folder: Path) -> list[Path]:
    """One archive per scene: reflectances as uint16 and the dominant land cover of each tile."""
    rng = np.random.default_rng(11)
    spectra = rng.uniform(300, 4000, (CLASSES, BANDS, 1, 1))
    paths = []
    for scene in range(SCENES):
        labels = rng.integers(0, CLASSES, TILES_PER_SCENE)
        haze = rng.uniform(0.85, 1.15)
        noise = rng.normal(0.0, 900.0, (TILES_PER_SCENE, BANDS, SIDE, SIDE))
        tiles = np.clip(spectra[labels] * haze + noise, 0, 10_000).astype(np.uint16)
        paths.append(folder / f"scene_{scene:03d}.npz")
        np.savez(paths[-1], tiles=tiles, labels=labels)
    return paths


class TileDataset(Dataset):
    """Tiles of all scenes as float reflectance, randomly flipped."""

    def __init__(self, scene_paths: list[Path]) -> None:
        self.scenes = [np.load(path) for path in scene_paths]
        self.labels = np.stack([scene["labels"] for scene in self.scenes])

    def __len__(self) -> int:
        return self.labels.size

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        scene, tile = divmod(index, TILES_PER_SCENE)
        pixels = self.scenes[scene]["tiles"][tile]  # costs time
        reflectance = torch.from_numpy(pixels.astype(np.float32)).mul_(1e-4)
        if torch.rand(()) < 0.5:
            reflectance = reflectance.flip(-1)
        return reflectance, int(self.labels[scene, tile])


class LandCoverNet(LightningModule):
    """Small convolutional classifier."""

    def __init__(self, width: int = 24, lr: float = 2e-3) -> None:
        super().__init__()
        self.lr = lr
        self.features = nn.Sequential(
            nn.Conv2d(BANDS, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.classifier = nn.Linear(2 * width, CLASSES)

    def forward(self, tiles: Tensor) -> Tensor:
        return self.classifier(self.features(tiles))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        tiles, labels = batch
        return F.cross_entropy(self(tiles), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr, fused=True)


def main() -> None:
    seed_everything(11)
    dataset = TileDataset(write_scenes(Path(tempfile.mkdtemp(prefix="tiles_"))))
    loader = DataLoader(dataset, batch_size=32, shuffle=True, drop_last=True)
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(LandCoverNet(), loader)


if __name__ == "__main__":
    main()
