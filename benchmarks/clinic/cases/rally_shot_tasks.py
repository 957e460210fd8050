"""Trains a transformer over the strokes of table-tennis rallies with four heads (next stroke, placement, winner,
speed) under manual optimization; each task's loss runs its own backward pass through the shared encoder.
---
expect: PD331
fix:
  ? |2-
            for loss in losses:
                self.manual_backward(loss, retain_graph=True)  # costs time
  : |2-
            self.manual_backward(sum(losses))
half: score
"""

import lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

STROKES, ZONES, LENGTH = 15, 9, 16


class Rallies(Dataset):
    """Rallies of fixed length whose next stroke depends on the last one."""

    def __init__(self, count: int, seed: int):
        gen = torch.Generator().manual_seed(seed)
        noise = torch.rand(count, LENGTH + 1, generator=gen) < 0.3
        step = torch.randint(STROKES, (count, LENGTH + 1), generator=gen)
        self.stroke = torch.where(noise, step, 2).cumsum(1) % STROKES
        self.zone = (self.stroke + torch.randint(3, self.stroke.shape, generator=gen)) % ZONES
        self.speed = torch.rand(count, LENGTH + 1, generator=gen) + 0.1 * self.stroke
        self.winner = (self.speed.mean(1) > 1.2).float()

    def __len__(self):
        return len(self.winner)

    def __getitems__(self, indices):
        index = torch.as_tensor(indices)
        return self.stroke[index], self.zone[index], self.speed[index], self.winner[index]


def as_is(batch):
    return batch


class RallyModel(lightning.LightningModule):
    def __init__(self, width: int = 96, layers: int = 2):
        super().__init__()
        self.automatic_optimization = False
        self.stroke = nn.Embedding(STROKES, width)
        self.zone = nn.Embedding(ZONES, width)
        self.speed = nn.Linear(1, width)
        self.position = nn.Parameter(0.02 * torch.randn(LENGTH, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.register_buffer("causal", nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False)
        self.next_stroke = nn.Linear(width, STROKES)
        self.next_zone = nn.Linear(width, ZONES)
        self.next_speed = nn.Linear(width, 1)
        self.win = nn.Linear(width, 1)

    def forward(self, stroke, zone, speed):
        x = self.stroke(stroke) + self.zone(zone) + self.speed(speed[..., None]) + self.position
        return self.encoder(x, mask=self.causal, is_causal=True)

    def training_step(self, batch, batch_idx):
        stroke, zone, speed, winner = batch
        state = self(stroke[:, :-1], zone[:, :-1], speed[:, :-1])
        losses = [
            F.cross_entropy(self.next_stroke(state).flatten(0, 1), stroke[:, 1:].flatten()),
            F.cross_entropy(self.next_zone(state).flatten(0, 1), zone[:, 1:].flatten()),
            F.mse_loss(self.next_speed(state).squeeze(-1), speed[:, 1:]),
            F.binary_cross_entropy_with_logits(self.win(state.mean(1)).squeeze(-1), winner),
        ]
        optimizer = self.optimizers()
        optimizer.zero_grad()
        for loss in losses:
            self.manual_backward(loss, retain_graph=True)  # costs time
        optimizer.step()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    lightning.seed_everything(4, verbose=False)
    loader = DataLoader(Rallies(48 * 40, seed=1), batch_size=48, shuffle=True, collate_fn=as_is)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(RallyModel(), loader)
