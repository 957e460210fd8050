"""A speech recognizer of residual layers over stacked frames with CTC; batches hold recordings of similar length.
---
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Sampler

N_BANDS = 32
N_LETTERS = 28


def make_recordings(n):
    generator = torch.Generator().manual_seed(0)
    voices = torch.randn(N_LETTERS, N_BANDS, generator=generator)
    recordings = []
    for _ in range(n):
        n_letters = int(torch.randint(6, 16, (1,), generator=generator))
        letters = torch.randint(1, N_LETTERS, (n_letters,), generator=generator)
        frames = voices[letters].repeat_interleave(8, dim=0)
        recordings.append((frames + 0.5 * torch.randn(frames.shape, generator=generator), letters))
    return sorted(recordings, key=lambda recording: len(recording[0]))


class Buckets(Sampler):
    """Batches of neighbors in a dataset sorted by length, in random order."""

    def __init__(self, n_recordings, batch_size):
        self.batches = [part.tolist() for part in torch.arange(n_recordings).split(batch_size)]

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        for i in torch.randperm(len(self.batches)).tolist():
            yield self.batches[i]


def collate(batch):
    frames = nn.utils.rnn.pad_sequence([frames for frames, _ in batch], batch_first=True)
    lengths = torch.tensor([len(frames) for frames, _ in batch])
    letters = nn.utils.rnn.pad_sequence([letters for _, letters in batch], batch_first=True)
    return frames, lengths, letters, torch.tensor([len(letters) for _, letters in batch])


class Residual(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 2 * dim)
        self.down = nn.Linear(2 * dim, dim)

    def forward(self, x):
        return x + self.down(F.relu(self.up(self.norm(x))))


class Recognizer(L.LightningModule):
    """Each second frame sees 5 frames around it."""

    def __init__(self, dim=64):
        super().__init__()
        self.embed = nn.Linear(5 * N_BANDS, dim)
        self.blocks = nn.Sequential(Residual(dim), Residual(dim))
        self.head = nn.Linear(dim, N_LETTERS)

    def forward(self, frames):
        stacked = F.pad(frames, (0, 0, 2, 2)).unfold(1, 5, 2).flatten(2)
        return self.head(self.blocks(self.embed(stacked))).log_softmax(dim=2)

    def training_step(self, batch, batch_idx):
        frames, lengths, letters, n_letters = batch
        scores = self(frames).transpose(0, 1)
        loss = F.ctc_loss(scores, letters, (lengths + 1) // 2, n_letters, zero_infinity=True)
        self.log("train_loss", loss, batch_size=len(frames))
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


L.seed_everything(1)
recordings = make_recordings(2_400)
loader = DataLoader(recordings, batch_sampler=Buckets(len(recordings), 24), collate_fn=collate)
trainer = L.Trainer(
    accelerator="cpu",
    max_epochs=5,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Recognizer(), loader)
