"""A small causal transformer learns melodies as event tokens; the norm of the gradient of each single tensor is logged
in each step.
---
expect: [PD502, PD504, PD507]
fix:
  "self.log_dict(grad_norm(self, norm_type=2))": >-
    self.log("grad_2.0_norm_total", nn.utils.get_total_norm([p.grad for p in self.parameters()]))
half: score
"""

import tempfile

import lightning
import torch
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import grad_norm
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

PITCHES = 48
STEPS = 48


def make_melodies(n, seed):
    """Motifs that are repeated and transposed, with some wrong notes."""
    g = torch.Generator().manual_seed(seed)
    motif = torch.randint(-3, 4, (n, 8), generator=g).cumsum(1)
    shift = torch.randint(-4, 5, (n, STEPS // 8 + 1, 1), generator=g).cumsum(1)
    notes = (motif[:, None] + shift).flatten(1) + PITCHES // 2
    wrong = torch.rand(notes.shape, generator=g) < 0.03
    notes = torch.where(wrong, torch.randint(0, PITCHES, notes.shape, generator=g), notes)
    return TensorDataset(notes[:, : STEPS + 1] % PITCHES)


class MelodyModel(lightning.LightningModule):
    def __init__(self, width=48, heads=4, depth=6):
        super().__init__()
        self.pitch = nn.Embedding(PITCHES, width)
        self.position = nn.Parameter(0.02 * torch.randn(STEPS, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, dim_feedforward=2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, depth, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.next_pitch = nn.Linear(width, PITCHES)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(STEPS), persistent=False)

    def forward(self, notes):
        x = self.pitch(notes) + self.position
        return self.next_pitch(self.body(x, mask=self.mask, is_causal=True))

    def loss(self, notes):
        return F.cross_entropy(self(notes[:, :-1]).flatten(0, 1), notes[:, 1:].flatten())

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch[0])
        self.log("train_loss", loss)
        return loss

    def on_before_optimizer_step(self, optimizer):
        self.log_dict(grad_norm(self, norm_type=2))  # costs time

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch[0]), batch_size=len(batch[0]))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


def main():
    lightning.seed_everything(13)
    train, val = make_melodies(1_120, seed=1), make_melodies(200, seed=2)
    model = MelodyModel()
    folder = tempfile.mkdtemp()
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        devices=1,
        logger=CSVLogger(folder),
        log_every_n_steps=50,
        default_root_dir=folder,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        model,
        DataLoader(train, sampler=BatchSampler(RandomSampler(train), 16, drop_last=True), batch_size=None),
        DataLoader(val, sampler=BatchSampler(range(len(val)), 50, drop_last=False), batch_size=None),
    )
    print(f"validation loss {trainer.callback_metrics['val_loss']:.3f}")


if __name__ == "__main__":
    main()
