"""Trains a convolutional CTC recognizer on utterances of varying length, with batches bucketed by length.
---
half: score
"""

import random
from collections.abc import Iterator

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler

BANDS = 40
PHONES = 30
BATCH_SIZE = 16

Utterance = tuple[Tensor, Tensor]


class Utterances(Dataset[Utterance]):
    """Filterbank frames that hold each phone for a few frames, with the phone sequence as the transcript."""

    def __init__(self, size: int) -> None:
        generator = torch.Generator().manual_seed(37)
        templates = torch.randn(PHONES, BANDS, generator=generator)
        self.items: list[Utterance] = []
        for _ in range(size):
            count = int(torch.randint(6, 26, (1,), generator=generator))
            phones = torch.randint(1, PHONES, (count,), generator=generator)
            frames = templates[phones].repeat_interleave(12, dim=0)
            self.items.append((frames + 0.5 * torch.randn(frames.shape, generator=generator), phones))

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Utterance:
        return self.items[index]


class BucketSampler(Sampler[list[int]]):
    """Sorts the utterances by length with a random tie-break, and yields the buckets in random order."""

    def __init__(self, lengths: list[int], batch_size: int) -> None:
        self.lengths = lengths
        self.batch_size = batch_size

    def __len__(self) -> int:
        return len(self.lengths) // self.batch_size

    def __iter__(self) -> Iterator[list[int]]:
        order = sorted(range(len(self.lengths)), key=lambda i: (self.lengths[i], random.random()))
        buckets = [order[i * self.batch_size : (i + 1) * self.batch_size] for i in range(len(self))]
        random.shuffle(buckets)
        yield from buckets


def collate(items: list[Utterance]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    frames, phones = zip(*items, strict=True)
    frame_counts = torch.tensor([len(f) for f in frames])
    phone_counts = torch.tensor([len(p) for p in phones])
    return pad_sequence(frames, batch_first=True).transpose(1, 2), torch.cat(phones), frame_counts, phone_counts


class ConvCTC(L.LightningModule):
    def __init__(self, width: int = 128, lr: float = 1e-3) -> None:
        super().__init__()
        self.lr = lr
        self.smoothed_loss = 0.0
        self.encoder = nn.Sequential(
            nn.Conv1d(BANDS, width, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv1d(width, width, 5, padding=2),
            nn.ReLU(),
            nn.Conv1d(width, width, 5, padding=2),
            nn.ReLU(),
        )
        self.head = nn.Linear(width, PHONES)

    def forward(self, frames: Tensor) -> Tensor:
        return self.head(self.encoder(frames).permute(2, 0, 1)).log_softmax(dim=-1)

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor, Tensor], batch_idx: int) -> Tensor:
        frames, phones, frame_counts, phone_counts = batch
        log_probs = self(frames)
        steps = (frame_counts + 1) // 2
        loss = F.ctc_loss(log_probs, phones, steps, phone_counts, blank=0, zero_infinity=True)
        self.smoothed_loss = 0.95 * self.smoothed_loss + 0.05 * loss.item()
        self.log("train/ctc", loss, batch_size=len(steps))
        self.log("train/ctc_smoothed", self.smoothed_loss, batch_size=len(steps))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr, fused=True)


def main() -> None:
    L.seed_everything(37)
    utterances = Utterances(size=BATCH_SIZE * 170)
    sampler = BucketSampler([len(frames) for frames, _ in utterances.items], BATCH_SIZE)
    loader = DataLoader(utterances, batch_sampler=sampler, collate_fn=collate)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        gradient_clip_val=5.0,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(ConvCTC(), loader)


if __name__ == "__main__":
    main()
