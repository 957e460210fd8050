"""Opens the zip archive of the patches again for every sample, which reads its whole table of contents.
---
expect: PD107
half: score
fix:
  'self.path = path': 'self.archive = zipfile.ZipFile(path)'
  'zipfile.ZipFile(self.path)  # costs time': 'self.archive'
"""

import tempfile
import zipfile
from pathlib import Path

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

N_PATCHES = 320
SHAPE = (1, 24, 24)


def write_archive(path):
    random = np.random.default_rng(0)
    with zipfile.ZipFile(path, "w") as archive:
        for index in range(N_PATCHES):
            archive.writestr(f"patches/{index:05d}.raw", random.normal(size=SHAPE).astype(np.float32).tobytes())


class Patches(Dataset):
    def __init__(self, path):
        self.path = path
        self.labels = np.random.default_rng(1).integers(0, 5, N_PATCHES)

    def __len__(self):
        return N_PATCHES

    def __getitem__(self, index):
        archive = zipfile.ZipFile(self.path)  # costs time
        data = archive.read(f"patches/{index:05d}.raw")
        return np.frombuffer(data, np.float32).reshape(SHAPE).copy(), self.labels[index]


class PatchNet(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 36, 5),
        )

    def training_step(self, batch, batch_idx):
        images, labels = batch
        return nn.functional.cross_entropy(self.net(images), labels)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    L.seed_everything(1)
    with tempfile.TemporaryDirectory() as folder:
        write_archive(Path(folder) / "patches.zip")
        loader = DataLoader(Patches(Path(folder) / "patches.zip"), batch_size=16, shuffle=True)
        trainer = L.Trainer(
            accelerator="cpu",
            max_epochs=12,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(PatchNet(), loader)
