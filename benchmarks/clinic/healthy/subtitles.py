"""Guesses the genre of a film from lines of its subtitles; batches hold lines of like length, padded to the longest.
---
half: score
"""

from collections.abc import Iterator

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler

WORDS = 4000
GENRES = 9
MAX_EPOCHS = 4


class SubtitleLines(Dataset):
    def __init__(self, lines: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.lengths = np.clip(rng.lognormal(2.6, 0.5, size=lines), 4, 60).astype(np.int64)
        self.genres = rng.integers(0, GENRES, size=lines)
        typical = rng.integers(1, WORDS, size=(GENRES, 200))
        words = rng.integers(1, WORDS, size=self.lengths.sum())
        genre_of_word = np.repeat(self.genres, self.lengths)
        from_genre = rng.random(words.size) < 0.25
        words[from_genre] = typical[genre_of_word[from_genre], rng.integers(0, 200, size=from_genre.sum())]
        self.lines = torch.from_numpy(words).split(self.lengths.tolist())

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.lines[index], int(self.genres[index])


class LengthBatches(Sampler[list[int]]):
    """Shuffles, sorts by length within large pools, and cuts the pools into batches."""

    def __init__(self, lengths: np.ndarray, batch_size: int, pool: int, seed: int) -> None:
        self.lengths = lengths
        self.batch_size = batch_size
        self.pool = pool
        self.rng = np.random.default_rng(seed)

    def __len__(self) -> int:
        return len(self.lengths) // self.batch_size

    def __iter__(self) -> Iterator[list[int]]:
        order = self.rng.permutation(len(self.lengths))
        pools = np.split(order, range(self.pool, len(order), self.pool))
        ordered = np.concatenate([pool[np.argsort(self.lengths[pool])] for pool in pools])
        batches = ordered[: len(self) * self.batch_size].reshape(len(self), self.batch_size)
        yield from self.rng.permutation(batches).tolist()


def collate(samples: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    lines, genres = zip(*samples, strict=True)
    return pad_sequence(lines, batch_first=True), torch.tensor(genres)


class GenreModule(L.LightningModule):
    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width, padding_idx=0)
        self.reader = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, GENRES)

    def forward(self, lines: torch.Tensor) -> torch.Tensor:
        states, _ = self.reader(self.words(lines))
        return self.head(states.masked_fill((lines == 0).unsqueeze(2), -1.0).amax(dim=1))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> torch.Tensor:
        lines, genres = batch
        return F.cross_entropy(self(lines), genres)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=2e-3, fused=True)


def main() -> None:
    L.seed_everything(24)
    dataset = SubtitleLines(lines=12_800, seed=24)
    batches = LengthBatches(dataset.lengths, batch_size=128, pool=3200, seed=24)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=MAX_EPOCHS,
        gradient_clip_val=1.0,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
    )
    trainer.fit(GenreModule(), DataLoader(dataset, batch_sampler=batches, collate_fn=collate))


if __name__ == "__main__":
    main()
