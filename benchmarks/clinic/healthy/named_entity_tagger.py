"""A bidirectional LSTM tags the entities in sentences of varying length, in batches of similar length that are padded
to their own maximum.
---
half: score
"""

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler
from torchmetrics.classification import MulticlassF1Score

VOCAB = 2_000
TAGS = 9
IGNORE = -100


class Sentences(Dataset):
    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        self.lengths = rng.integers(8, 49, size=n)
        words = torch.from_numpy(rng.integers(1, VOCAB, size=self.lengths.sum()))
        tags = torch.where(words % 5 == 0, words % (TAGS - 1) + 1, 0)
        self.words = words.split(self.lengths.tolist())
        self.tags = tags.split(self.lengths.tolist())

    def __len__(self):
        return len(self.words)

    def __getitem__(self, idx):
        return self.words[idx], self.tags[idx]


class LengthBatches(Sampler):
    """Batches of sentences of similar length: shuffled, sorted within pools of batches, in random order."""

    def __init__(self, lengths, batch_size, pool=20, seed=0):
        self.lengths = lengths
        self.batch_size = batch_size
        self.pool = pool * batch_size
        self.rng = np.random.default_rng(seed)

    def __len__(self):
        return len(self.lengths) // self.batch_size

    def __iter__(self):
        order = self.rng.permutation(len(self.lengths))
        pools = [order[i : i + self.pool] for i in range(0, len(order), self.pool)]
        order = np.concatenate([pool[self.lengths[pool].argsort()] for pool in pools])
        batches = order[: len(self) * self.batch_size].reshape(-1, self.batch_size)
        yield from self.rng.permutation(batches).tolist()


def collate(samples):
    words, tags = zip(*samples, strict=True)
    return pad_sequence(words, batch_first=True), pad_sequence(tags, batch_first=True, padding_value=IGNORE)


class Tagger(L.LightningModule):
    def __init__(self, dim=96, hidden=160, lr=3e-3):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim, padding_idx=0)
        self.lstm = nn.LSTM(dim, hidden, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * hidden, TAGS)
        self.val_f1 = MulticlassF1Score(num_classes=TAGS, ignore_index=IGNORE)
        self.lr = lr

    def forward(self, words):
        states, _ = self.lstm(self.embed(words))
        return self.out(states)

    def training_step(self, batch, batch_idx):
        words, tags = batch
        loss = F.cross_entropy(self(words).flatten(0, 1), tags.flatten(), ignore_index=IGNORE)
        self.log("train_loss", loss, batch_size=len(words))
        return loss

    def validation_step(self, batch, batch_idx):
        words, tags = batch
        self.val_f1.update(self(words).flatten(0, 1), tags.flatten())
        self.log("val_f1", self.val_f1, on_epoch=True, batch_size=len(words))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr, fused=True)


if __name__ == "__main__":
    L.seed_everything(31)
    train, val = Sentences(2_880, seed=0), Sentences(256, seed=1)
    val_batches = LengthBatches(val.lengths, batch_size=64)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=3,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(
        Tagger(),
        DataLoader(train, batch_sampler=LengthBatches(train.lengths, batch_size=32), collate_fn=collate),
        DataLoader(val, batch_sampler=val_batches, collate_fn=collate),
    )
