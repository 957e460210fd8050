"""A checkpoint with the optimizer's state is written every few steps.
---
expect:
- PD602
half: score
fix:
  'every_n_train_steps=3': 'every_n_epochs=1'
"""

import tempfile

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

N_TOKENS = 4_000
LENGTH = 12


def make_pairs(n):
    generator = torch.Generator().manual_seed(0)
    source = torch.randint(1, N_TOKENS, (n, LENGTH), generator=generator)
    return source, (source.flip(1) * 7) % N_TOKENS


class Translator(L.LightningModule):
    def __init__(self, dim=192):
        super().__init__()
        self.source = nn.Embedding(N_TOKENS, dim)
        self.target = nn.Embedding(N_TOKENS, dim)
        self.positions = nn.Parameter(torch.randn(LENGTH, dim) * 0.02)
        self.transformer = nn.Transformer(
            dim, 4, num_encoder_layers=1, num_decoder_layers=1, dim_feedforward=384, dropout=0.0, batch_first=True
        )
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH - 1))

    def training_step(self, batch, batch_idx):
        source, target = batch
        encoded = self.source(source) + self.positions
        shifted = self.target(target[:, :-1]) + self.positions[:-1]
        decoded = self.transformer(encoded, shifted, tgt_mask=self.mask, tgt_is_causal=True)
        logits = decoded @ self.target.weight.T / 14
        loss = F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=5e-4, fused=True)


L.seed_everything(1)
loader = DataLoader(TensorDataset(*make_pairs(1_600)), batch_size=16, shuffle=True)
with tempfile.TemporaryDirectory() as folder:
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=4,
        logger=False,
        callbacks=[ModelCheckpoint(folder, every_n_train_steps=3, save_last=True)],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Translator(), loader)
