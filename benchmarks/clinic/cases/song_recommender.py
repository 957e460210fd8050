"""Bayesian personalised ranking of songs with user and song embeddings; every step updates all rows of the big tables
with dense gradients.
---
expect: PD322
also:
  PD308: one fused operator updates all rows in less time
half: tune
fix:
  ? "self.users = nn.Embedding(n_users, dim)"
  : "self.users = nn.Embedding(n_users, dim, sparse=True)"
  ? "self.songs = nn.Embedding(n_songs, dim)"
  : "self.songs = nn.Embedding(n_songs, dim, sparse=True)"
  ? "self.song_bias = nn.Embedding(n_songs, 1)"
  : "self.song_bias = nn.Embedding(n_songs, 1, sparse=True)"
  ? "torch.optim.Adam(self.parameters(), lr=self.hparams.lr)"
  : "torch.optim.SparseAdam(list(self.parameters()), lr=self.hparams.lr)"
"""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler


class Plays(Dataset):
    """(user, song) pairs; a batch of indices gives a batch of triples with a random negative."""

    def __init__(self, n_plays, n_users, n_songs):
        self.n_songs = n_songs
        self.user = torch.randint(0, n_users, (n_plays,))
        taste = self.user * 7919 % n_songs
        self.song = (taste + torch.randint(0, 50, (n_plays,))) % n_songs

    def __len__(self):
        return len(self.user)

    def __getitem__(self, index):
        negative = torch.randint(0, self.n_songs, (len(index),))
        return self.user[index], self.song[index], negative


class BPR(LightningModule):
    def __init__(self, n_users, n_songs, dim=32, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.users = nn.Embedding(n_users, dim)
        self.songs = nn.Embedding(n_songs, dim)
        self.song_bias = nn.Embedding(n_songs, 1)
        nn.init.normal_(self.users.weight, std=0.05)
        nn.init.normal_(self.songs.weight, std=0.05)
        nn.init.zeros_(self.song_bias.weight)

    def score(self, user, song):
        return (self.users(user) * self.songs(song)).sum(-1) + self.song_bias(song).squeeze(-1)

    def training_step(self, batch, batch_idx):
        user, liked, other = batch
        margin = self.score(user, liked) - self.score(user, other)
        loss = -F.logsigmoid(margin).mean()
        self.log("bpr_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


if __name__ == "__main__":
    seed_everything(5)
    n_users, n_songs = 40_000, 24_000
    plays = Plays(80_000, n_users, n_songs)
    sampler = BatchSampler(RandomSampler(plays), batch_size=512, drop_last=True)
    loader = DataLoader(plays, sampler=sampler, batch_size=None)
    trainer = Trainer(
        max_epochs=5,
        accelerator="cpu",
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=False,
    )
    trainer.fit(BPR(n_users, n_songs), loader)
