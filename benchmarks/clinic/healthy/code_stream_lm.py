"""Trains a layer-normalized recurrent language model on long code streams with truncated backpropagation.
---
half: score
"""

from __future__ import annotations

from collections.abc import Iterator

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

VOCAB_SIZE = 512
CHUNK = 24


class CodeStreams(IterableDataset):
    """Consecutive chunks of parallel token streams; every chunk continues the one before."""

    def __init__(self, num_streams: int, num_chunks: int) -> None:
        jumps = torch.randint(0, 8, (num_streams, num_chunks * CHUNK + 1))
        self.streams = jumps.cumsum(1) % VOCAB_SIZE

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, self.streams.shape[1] - 1, CHUNK):
            window = self.streams[:, start : start + CHUNK + 1]
            yield window[:, :-1], window[:, 1:]


class NormedCell(nn.Module):
    """Gated recurrent cell that normalizes the recurrent part of its gates in every step."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.inputs = nn.Linear(dim, 3 * dim)
        self.recurrent = nn.Linear(dim, 3 * dim, bias=False)
        self.norm = nn.LayerNorm(3 * dim)

    def forward(self, embedded: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        outputs = []
        for projected in self.inputs(embedded).unbind(1):
            reset_in, update_in, new_in = projected.chunk(3, dim=1)
            reset_rec, update_rec, new_rec = self.norm(self.recurrent(state)).chunk(3, dim=1)
            update = torch.sigmoid(update_in + update_rec)
            candidate = torch.tanh(new_in + torch.sigmoid(reset_in + reset_rec) * new_rec)
            state = torch.lerp(candidate, state, update)
            outputs.append(state)
        return torch.stack(outputs, dim=1), state


class StreamModel(L.LightningModule):
    """Next-token model that carries its detached state from chunk to chunk."""

    def __init__(self, dim: int = 192, num_streams: int = 64) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.embedding = nn.Embedding(VOCAB_SIZE, dim)
        self.cell = NormedCell(dim)
        self.readout = nn.Linear(dim, VOCAB_SIZE)
        self.register_buffer("state", torch.zeros(num_streams, dim), persistent=False)

    def on_train_epoch_start(self) -> None:
        self.state = torch.zeros_like(self.state)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        tokens, following = batch
        outputs, state = self.cell(self.embedding(tokens), self.state)
        self.state = state.detach()
        loss = F.cross_entropy(self.readout(outputs).flatten(0, 1), following.flatten())
        self.log("train/perplexity", loss.detach().exp(), batch_size=len(tokens))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


def main() -> None:
    L.seed_everything(19)
    model = StreamModel()
    streams = CodeStreams(num_streams=model.hparams.num_streams, num_chunks=100)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        gradient_clip_val=1.0,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(streams, batch_size=None))


if __name__ == "__main__":
    main()
