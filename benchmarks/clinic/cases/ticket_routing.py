"""Trains a classifier that routes support tickets on top of frozen pretrained word vectors.
The word vectors are a persistent buffer, so that every checkpoint writes the whole unchanged table to disk.
---
expect: PD602
half: score
fix:
  ? "self.register_buffer(name, vectors)"
  : "self.register_buffer(name, vectors, persistent=False)"
"""

from __future__ import annotations

import tempfile

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

VOCAB_SIZE = 400_000
VECTOR_DIM = 200
NUM_QUEUES = 12


class Tickets(Dataset):
    """Word indices of tickets; the queue decides which part of the vocabulary is frequent."""

    def __init__(self, num_tickets: int, length: int) -> None:
        self.queue = torch.randint(NUM_QUEUES, (num_tickets,))
        topical = self.queue[:, None] * (VOCAB_SIZE // NUM_QUEUES) + torch.randint(0, 500, (num_tickets, length))
        common = torch.randint(0, VOCAB_SIZE, (num_tickets, length))
        self.words = torch.where(torch.rand(num_tickets, length) < 0.3, topical, common)

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: list[int]) -> tuple[Tensor, Tensor]:
        return self.words[index], self.queue[index]


def load_word_vectors() -> Tensor:
    """The pretrained table; it is the same for every run and is never updated."""
    generator = torch.Generator().manual_seed(2014)
    return torch.randn(VOCAB_SIZE, VECTOR_DIM, generator=generator) * 0.4


class FrozenVectors(nn.Module):
    """Lookup in a fixed table of word vectors."""

    def __init__(self, vectors: Tensor, name: str = "vectors") -> None:
        super().__init__()
        self.register_buffer(name, vectors)

    def forward(self, words: Tensor) -> Tensor:
        return F.embedding(words, self.vectors)


class ConvolutionalReader(nn.Module):
    """Convolutions of several widths over the words with max pooling over time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = FrozenVectors(load_word_vectors())
        self.convolutions = nn.ModuleList(nn.Conv1d(VECTOR_DIM, width, k, padding=k // 2) for k in (1, 3, 5))
        self.hidden = nn.Linear(3 * width, width)
        self.output = nn.Linear(width, NUM_QUEUES)

    def forward(self, words: Tensor) -> Tensor:
        vectors = self.embedding(words).mT.contiguous()
        pooled = [F.relu(convolution(vectors)).amax(dim=2) for convolution in self.convolutions]
        return self.output(F.relu(self.hidden(torch.cat(pooled, dim=1))))


class TicketRouter(L.LightningModule):
    """Classification of tickets into queues."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.reader = ConvolutionalReader(width)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        words, queue = batch
        loss = F.cross_entropy(self.reader(words), queue)
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        words, queue = batch
        logits = self.reader(words)
        self.log("val/accuracy", (logits.argmax(1) == queue).float().mean(), batch_size=len(queue))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


def make_loader(tickets: Dataset, batch_size: int) -> DataLoader:
    sampler = BatchSampler(RandomSampler(tickets), batch_size=batch_size, drop_last=True)
    return DataLoader(tickets, sampler=sampler, batch_size=None)


def main() -> None:
    L.seed_everything(13)
    train, val = Tickets(num_tickets=32 * 20, length=64), Tickets(num_tickets=64, length=64)
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=10,
            num_sanity_val_steps=0,
            callbacks=[ModelCheckpoint(folder, monitor="val/accuracy", mode="max", save_last=True)],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(TicketRouter(), make_loader(train, 32), make_loader(val, 32))


if __name__ == "__main__":
    main()
