"""A recurrent network predicts the next strokes of drum patterns of different length, batched by similar length.
---
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

DRUMS = 9
LONGEST = 48


class DrumPatterns(Dataset):
    """Strokes of nine drums on sixteenth notes: a bar of one of 30 styles, repeated, with ghosts and left-out notes."""

    def __init__(self, count):
        self.lengths = torch.randint(16, LONGEST + 1, (count,))
        bars = torch.rand(30, 16, DRUMS) < torch.linspace(0.08, 0.5, DRUMS)
        style = torch.randint(0, len(bars), (count,))
        start = torch.randint(0, 16, (count, 1))
        beat = (start + torch.arange(LONGEST)) % 16
        strokes = bars[style.unsqueeze(1), beat]
        strokes = strokes ^ (torch.rand(strokes.shape) < 0.03)
        played = torch.arange(LONGEST) < self.lengths.unsqueeze(1)
        self.strokes = strokes & played.unsqueeze(2)

    def __len__(self):
        return len(self.lengths)

    def __getitems__(self, rows):
        rows = torch.as_tensor(rows)
        lengths = self.lengths[rows]
        return self.strokes[rows, : int(lengths.max())].float(), lengths


class SimilarLengths(Sampler):
    """Batches of patterns of similar length: random chunks, sorted within, their batches in random order."""

    def __init__(self, lengths, batch_size, chunk=25):
        self.lengths = lengths
        self.batch_size = batch_size
        self.chunk = chunk * batch_size

    def __len__(self):
        return len(self.lengths) // self.batch_size

    def __iter__(self):
        order = torch.randperm(len(self.lengths))
        chunks = [part[self.lengths[part].argsort()] for part in order.split(self.chunk)]
        batches = torch.cat(chunks)[: len(self) * self.batch_size].view(len(self), self.batch_size)
        yield from batches[torch.randperm(len(self))].tolist()


class DrumModel(L.LightningModule):
    def __init__(self, hidden=96, lr=4e-3):
        super().__init__()
        self.lr = lr
        self.memory = nn.GRU(DRUMS, hidden, batch_first=True)
        self.head = nn.Linear(hidden, DRUMS)

    def forward(self, strokes):
        return self.head(self.memory(strokes)[0])

    def training_step(self, batch, batch_idx):
        strokes, lengths = batch
        logits = self(strokes[:, :-1])
        valid = torch.arange(1, strokes.shape[1], device=self.device) < lengths.unsqueeze(1)
        return F.binary_cross_entropy_with_logits(logits[valid], strokes[:, 1:][valid])

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.lr, fused=True)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.trainer.max_epochs)
        return [optimizer], [scheduler]


def identity(batch):
    return batch


def main():
    L.seed_everything(13)
    patterns = DrumPatterns(9600)
    sampler = SimilarLengths(patterns.lengths, 64)
    loader = DataLoader(patterns, batch_sampler=sampler, collate_fn=identity)
    model = DrumModel()
    trainer = L.Trainer(
        max_epochs=3,
        accelerator="cpu",
        # recurrent networks: a rare steep gradient would spoil the memory
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader)
    model.eval()
    strokes, lengths = patterns.__getitems__(list(range(500)))
    with torch.inference_mode():
        guess = model(strokes[:, :-1]) > 0
    valid = torch.arange(1, strokes.shape[1]) < lengths.unsqueeze(1)
    right = (guess == strokes[:, 1:].bool())[valid].float().mean()
    print(f"strokes foretold: {right:.3f}")


if __name__ == "__main__":
    main()
