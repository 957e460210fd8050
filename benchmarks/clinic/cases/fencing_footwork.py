"""Classifies fencing footwork (advance, retreat, lunge, ...) from short clips of body joints with a temporal
convolution. The dataset indexes the open npz archive for each sample, so each sample reads the whole array again.
---
expect: [PD107, PD101]
half: score
fix:
  ? "self.archive = np.load(path)"
  : "self.archive = dict(np.load(path))"
"""

import tempfile
from pathlib import Path

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

MOVES = ("advance", "retreat", "lunge", "fleche", "balestra", "recover")
FRAMES = 24
COORDINATES = 34
MAX_EPOCHS = 17


def record_clips(path: Path, clips: int, seed: int) -> None:
    """Write synthetic joint tracks: one smooth motion per move, with noise of the tracker on top."""
    rng = np.random.default_rng(seed)
    phase = np.linspace(0.0, 2.0 * np.pi, FRAMES, dtype=np.float32)[None, :, None]
    speed = rng.uniform(0.5, 2.5, size=(len(MOVES), 1, COORDINATES)).astype(np.float32)
    shift = rng.uniform(0.0, np.pi, size=(len(MOVES), 1, COORDINATES)).astype(np.float32)
    motion = np.sin(phase * speed + shift)
    labels = rng.integers(0, len(MOVES), size=clips)
    noise = rng.normal(0.0, 0.6, size=(clips, FRAMES, COORDINATES)).astype(np.float32)
    np.savez(path, clips=motion[labels] + noise, labels=labels)


class FootworkClips(Dataset):
    def __init__(self, path: Path) -> None:
        self.archive = np.load(path)
        self.labels = self.archive["labels"].tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        clip = self.archive["clips"][index]  # costs time
        return torch.from_numpy(clip), self.labels[index]


class FootworkNet(nn.Module):
    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(COORDINATES, width, kernel_size=5, padding=2),
            nn.ReLU(),
            nn.Conv1d(width, width, kernel_size=5, padding=2),
            nn.ReLU(),
            nn.Conv1d(width, width, kernel_size=5, padding=2),
            nn.ReLU(),
        )
        self.head = nn.Linear(width, len(MOVES))

    def forward(self, clips: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(clips.transpose(1, 2)).mean(dim=2))


class FootworkModule(L.LightningModule):
    def __init__(self, learning_rate: float = 1e-3) -> None:
        super().__init__()
        self.net = FootworkNet()
        self.learning_rate = learning_rate

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        clips, moves = batch
        return F.cross_entropy(self.net(clips), moves)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.learning_rate, fused=True)


def main() -> None:
    L.seed_everything(11)
    path = Path(tempfile.mkdtemp(prefix="footwork_")) / "season.npz"
    record_clips(path, clips=400, seed=11)
    loader = DataLoader(FootworkClips(path), batch_size=20, shuffle=True, drop_last=True)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=MAX_EPOCHS,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
    )
    trainer.fit(FootworkModule(), loader)


if __name__ == "__main__":
    main()
