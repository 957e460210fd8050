"""A transformer encoder with three heads reads plays from player tracks under manual optimization, and its time
goes to three backward passes through the shared encoder.
---
expect: PD331
fix:
  self.manual_backward(loss, retain_graph=True): pass
  optimizer.zero_grad(): optimizer.zero_grad(); self.manual_backward(sum(losses.values()))
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

torch.set_num_threads(1)
PLAYERS, FRAMES = 22, 10


def make_plays(n, seed=6):
    """Positions of 22 players over 10 frames; next ball place, ball carrier and whether a pass follows."""
    g = torch.Generator().manual_seed(seed)
    start = torch.rand(n, PLAYERS, 1, 2, generator=g) * 2 - 1
    speed = torch.randn(n, PLAYERS, 1, 2, generator=g) * 0.05
    t = torch.arange(FRAMES)[None, None, :, None]
    track = start + speed * t + 0.01 * torch.randn(n, PLAYERS, FRAMES, 2, generator=g)
    carrier = track[:, :, -1].square().sum(-1).argmin(1)
    ball = track[torch.arange(n), carrier, -1] + 2 * speed[torch.arange(n), carrier, 0]
    near = (track[:, :, -1] - ball[:, None]).norm(dim=-1).lt(0.4).sum(1)
    passed = (near > 3).float()
    return TensorDataset(track.flatten(2), ball, carrier, passed)


class PlayReader(L.LightningModule):
    """A shared encoder over the players with three small heads."""

    def __init__(self, d=96, layers=2):
        super().__init__()
        self.automatic_optimization = False
        self.embed = nn.Linear(FRAMES * 2, d)
        self.encoder = nn.ModuleList(
            nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.place = nn.Linear(d, 2)
        self.carrier = nn.Linear(d, 1)
        self.passing = nn.Linear(d, 1)

    def forward(self, tracks):
        h = self.embed(tracks)
        for layer in self.encoder:
            h = layer(h)
        pooled = h.mean(1)
        return self.place(pooled), self.carrier(h).squeeze(-1), self.passing(pooled).squeeze(-1)

    def training_step(self, batch, _):
        tracks, ball, carrier, passed = batch
        optimizer = self.optimizers()
        place_hat, carrier_hat, passing_hat = self(tracks)
        losses = {
            "place": F.smooth_l1_loss(place_hat, ball),
            "carrier": 0.3 * F.cross_entropy(carrier_hat, carrier),
            "passing": F.binary_cross_entropy_with_logits(passing_hat, passed),
        }
        optimizer.zero_grad()
        for name, loss in losses.items():
            self.log(name, loss)
            self.manual_backward(loss, retain_graph=True)  # costs time
        self.clip_gradients(optimizer, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
        optimizer.step()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


def main():
    L.seed_everything(41)
    plays = make_plays(2800)
    batches = BatchSampler(RandomSampler(plays), 40, drop_last=True)
    loader = DataLoader(plays, sampler=batches, batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        max_epochs=4,
    )
    trainer.fit(PlayReader(), loader)
    print({k: float(v) for k, v in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
