"""A two-layer LSTM predicts the next note of folk tunes by truncated backpropagation through time, with the hidden
state carried from batch to batch and tied embeddings.
---
half: score
"""

import lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

NOTES, STREAMS, CHUNK, WIDTH = 96, 32, 32, 192


class TuneStreams(Dataset):
    """All tunes end to end, cut into parallel streams; item i is the i-th chunk of every stream."""

    def __init__(self, chunks):
        gen = torch.Generator().manual_seed(41)
        length = chunks * CHUNK + 1
        step = torch.randint(-4, 5, (STREAMS, length), generator=gen)
        motif = torch.randint(-4, 5, (STREAMS, 16), generator=gen).repeat(1, length // 16 + 1)[:, :length]
        keep = torch.rand(STREAMS, length, generator=gen) < 0.8
        self.notes = torch.where(keep, motif, step).cumsum(1).remainder(NOTES)
        self.chunks = chunks

    def __len__(self):
        return self.chunks

    def __getitem__(self, index):
        part = self.notes[:, index * CHUNK : (index + 1) * CHUNK + 1]
        return part[:, :-1], part[:, 1:]


class TuneModel(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.notes = nn.Embedding(NOTES, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.out = nn.Linear(WIDTH, NOTES)
        self.out.weight = self.notes.weight
        nn.init.normal_(self.notes.weight, std=0.05)
        self.state = None

    def forward(self, notes, state=None):
        hidden, state = self.lstm(self.notes(notes), state)
        return self.out(hidden), state

    def on_train_epoch_start(self):
        self.state = None

    def training_step(self, batch, batch_idx):
        notes, following = batch
        logits, state = self(notes, self.state)
        self.state = tuple(part.detach() for part in state)
        return F.cross_entropy(logits.flatten(0, 1), following.flatten())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3, fused=True)


if __name__ == "__main__":
    lightning.seed_everything(10, verbose=False)
    # batch_size=None: an item is a whole batch already, and the order must be kept for the carried state
    loader = DataLoader(TuneStreams(100), batch_size=None, shuffle=False)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=1.0,
    )
    trainer.fit(TuneModel(), loader)
