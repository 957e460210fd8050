"""Learns to predict the engine's evaluation of a chess position from the pieces on the board. Each batch also drags the
games' move records along as long Python lists, which Lightning walks through element by element.
---
expect: PD205
fix:
  '"game": [s["game"] for s in samples],': '"game": [" ".join(s["game"]) for s in samples],'
  'moves = batch["game"][worst]': 'moves = batch["game"][worst].split(" ")'
half: score
"""

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SQUARES, KINDS, SEATS = 64, 12, 24
PIECE_VALUE = np.array([1, 3, 3, 5, 9, 0, -1, -3, -3, -5, -9, 0], dtype=np.float32)
PIECES, FILES = ("", "N", "B", "R", "Q", "K"), "abcdefgh"
SAN = [piece + file + str(rank) for piece in PIECES for file in FILES for rank in range(1, 9)]


class Positions(Dataset):
    """One position from each game, with the moves of the whole game."""

    def __init__(self, games, seed):
        rng = np.random.default_rng(seed)
        kinds = rng.integers(0, KINDS, (games, SEATS))
        squares = np.argsort(rng.random((games, SQUARES)), axis=1)[:, :SEATS]
        center = 1.0 - np.abs(squares % 8 - 3.5) / 8
        score = (PIECE_VALUE[kinds] * center).sum(axis=1) / 12 + rng.normal(0, 0.05, games)
        self.features = torch.from_numpy(kinds * SQUARES + squares)
        self.score = torch.from_numpy(np.tanh(score).astype(np.float32))
        self.games = []
        for plies in rng.integers(30, 90, games):
            self.games.append([SAN[m] for m in rng.integers(0, len(SAN), plies)])

    def __len__(self):
        return len(self.games)

    def __getitem__(self, row):
        return {"features": self.features[row], "score": self.score[row], "game": self.games[row]}


def collate_positions(samples):
    return {
        "features": torch.stack([s["features"] for s in samples]),
        "score": torch.stack([s["score"] for s in samples]),
        "game": [s["game"] for s in samples],
    }


class EvalNet(L.LightningModule):
    def __init__(self, width=384, lr=2e-3):
        super().__init__()
        self.lr = lr
        self.accumulator = nn.EmbeddingBag(KINDS * SQUARES, width, mode="sum")
        self.layers = nn.Sequential(
            nn.Hardtanh(0.0, 1.0),
            nn.Linear(width, 256),
            nn.Hardtanh(0.0, 1.0),
            nn.Linear(256, 256),
            nn.Hardtanh(0.0, 1.0),
            nn.Linear(256, 1),
        )
        self.biggest_miss = (0.0, "")

    def forward(self, features):
        return self.layers(self.accumulator(features)).squeeze(1)

    def training_step(self, batch, batch_idx):
        loss = nn.functional.mse_loss(self(batch["features"]), batch["score"])
        self.log("train_loss", loss, batch_size=len(batch["score"]))
        return loss

    def validation_step(self, batch, batch_idx):
        miss = (self(batch["features"]) - batch["score"]).abs()
        self.log("val_mae", miss.mean(), batch_size=len(miss))
        worst = int(miss.argmax())
        moves = batch["game"][worst]
        self.biggest_miss = max(self.biggest_miss, (float(miss[worst]), " ".join(moves[-6:])))

    def on_validation_epoch_end(self):
        print(f"largest miss {self.biggest_miss[0]:.3f} after ... {self.biggest_miss[1]}")
        self.biggest_miss = (0.0, "")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr, fused=True)


def main():
    L.seed_everything(3)
    train = DataLoader(Positions(12800, seed=1), batch_size=192, shuffle=True, collate_fn=collate_positions)
    val = DataLoader(Positions(512, seed=2), batch_size=256, collate_fn=collate_positions)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(EvalNet(), train, val)
    print("train_loss", round(float(trainer.callback_metrics["train_loss"]), 4))


if __name__ == "__main__":
    main()
