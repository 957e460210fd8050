"""A gated recurrent network recommends the next track of a listening session, with a softmax over all tracks and
metrics that are updated in validation and computed once per epoch.
---
half: score
"""

import tempfile

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric

TRACKS = 800
LENGTH = 20


def make_sessions(count, seed):
    """Sessions stay in a genre for a while and walk between neighbouring tracks."""
    gen = torch.Generator().manual_seed(seed)
    start = torch.randint(TRACKS, (count, 1), generator=gen)
    steps = torch.randint(1, 6, (count, LENGTH), generator=gen)
    jumps = torch.randint(TRACKS, (count, LENGTH), generator=gen) * (torch.rand(count, LENGTH, generator=gen) < 0.05)
    walk = (start + torch.cumsum(steps + jumps, dim=1)) % TRACKS
    return TensorDataset(torch.cat([start, walk], dim=1))


class NextTrack(L.LightningModule):
    def __init__(self, dim=64, hidden=128, lr=2e-3):
        super().__init__()
        self.save_hyperparameters()
        self.tracks = nn.Embedding(TRACKS, dim)
        self.rnn = nn.GRU(dim, hidden, batch_first=True)
        self.project = nn.Linear(hidden, dim)
        self.bias = nn.Parameter(torch.zeros(TRACKS))
        self.hit_rate = MeanMetric()
        self.reciprocal_rank = MeanMetric()
        nn.init.normal_(self.tracks.weight, std=0.1)

    def forward(self, session):
        states, _ = self.rnn(self.tracks(session))
        return F.linear(self.project(states), self.tracks.weight, self.bias)

    def training_step(self, batch, batch_idx):
        (session,) = batch
        logits = self(session[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), session[:, 1:].flatten())
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        (session,) = batch
        scores = self(session[:, :-1])[:, -1]
        target = session[:, -1:]
        rank = (scores > scores.gather(1, target)).sum(1) + 1
        self.hit_rate.update((rank <= 10).float())
        self.reciprocal_rank.update(1 / rank)
        self.log("val_hit@10", self.hit_rate, on_epoch=True)
        self.log("val_mrr", self.reciprocal_rank, on_epoch=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


if __name__ == "__main__":
    L.seed_everything(9)
    train_loader = DataLoader(make_sessions(3200, 1), batch_size=40, shuffle=True)
    val_loader = DataLoader(make_sessions(384, 2), batch_size=96)
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            accelerator="cpu",
            max_epochs=4,
            default_root_dir=folder,
            enable_progress_bar=False,
            log_every_n_steps=20,
            callbacks=[
                ModelCheckpoint(monitor="val_mrr", mode="max"),
                EarlyStopping("val_mrr", mode="max", patience=3),
            ],
        )
        trainer.fit(NextTrack(), train_loader, val_loader)
    print("validation hit rate", float(trainer.callback_metrics["val_hit@10"]))
