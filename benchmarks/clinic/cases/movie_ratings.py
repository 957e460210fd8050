"""Trains a neural recommender (embeddings of users and movies, then an MLP) on ratings with Adagrad. The mistake: the
two large embedding tables have dense gradients, so that each step fills and updates all their rows.
---
expect: PD322
fix:
  ? "self.users = nn.Embedding(USERS, width)"
  : "self.users = nn.Embedding(USERS, width, sparse=True)"
  ? "self.movies = nn.Embedding(MOVIES, width)"
  : "self.movies = nn.Embedding(MOVIES, width, sparse=True)"
half: tune
"""

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset
from torchmetrics import MeanSquaredError

USERS, MOVIES = 160_000, 40_000


def make_ratings(count, seed):
    generator = torch.Generator().manual_seed(seed)
    users = torch.randint(0, USERS, (count,), generator=generator)
    movies = (MOVIES * torch.rand(count, generator=generator) ** 2).long()
    taste = torch.cos(users.float()) * torch.cos(3 * movies.float())
    ratings = 3 + taste + 0.3 * torch.randn(count, generator=generator)
    return TensorDataset(users, movies, ratings)


def loader(ratings, batch_size, shuffle):
    sampler = RandomSampler(ratings) if shuffle else SequentialSampler(ratings)
    return DataLoader(ratings, sampler=BatchSampler(sampler, batch_size, drop_last=shuffle), batch_size=None)


class NeuralRecommender(L.LightningModule):
    def __init__(self, width=32, hidden=256):
        super().__init__()
        self.users = nn.Embedding(USERS, width)
        self.movies = nn.Embedding(MOVIES, width)
        nn.init.normal_(self.users.weight, std=0.1)
        nn.init.normal_(self.movies.weight, std=0.1)
        self.mlp = nn.Sequential(
            nn.Linear(3 * width, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
        )
        self.val_rmse = MeanSquaredError(squared=False)

    def forward(self, users, movies):
        user, movie = self.users(users), self.movies(movies)
        return 3 + self.mlp(torch.cat([user, movie, user * movie], 1)).squeeze(1)

    def training_step(self, batch, batch_idx):
        users, movies, ratings = batch
        loss = F.mse_loss(self(users, movies), ratings)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        users, movies, ratings = batch
        self.val_rmse.update(self(users, movies), ratings)
        self.log("val_rmse", self.val_rmse, prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.Adagrad(self.parameters(), lr=0.02)


def main():
    L.seed_everything(11)
    train, val = make_ratings(80_000, 0), make_ratings(8_000, 1)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=2,
        logger=CSVLogger("lightning_logs", name="movie_ratings"),
        enable_checkpointing=False,
    )
    trainer.fit(NeuralRecommender(), loader(train, 1024, True), loader(val, 2048, False))


if __name__ == "__main__":
    main()
