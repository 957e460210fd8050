r"""Masked-residue pretraining of a small transformer on protein sequences; the vocabulary head (k-mer vocabulary) is
evaluated for every position although only 15 % of them carry a label.
---
expect: PD325
half: tune
fix:
  ? "logits = self.decoder(hidden)  # costs time"
  : "picked = labels != -100\n        logits, labels = self.decoder(hidden[picked]), labels[picked]"
"""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, Dataset

KMERS = 4096
MASK = KMERS
LENGTH = 48


class ProteinWindows(Dataset):
    def __init__(self, n):
        generator = torch.Generator().manual_seed(1)
        start = torch.randint(0, KMERS, (n, 1), generator=generator)
        stride = torch.randint(1, 9, (n, 1), generator=generator)
        self.tokens = (start + stride * torch.arange(LENGTH)) % KMERS

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, i):
        return self.tokens[i]


def mask_tokens(rows):
    tokens = torch.stack(rows)
    chosen = torch.rand(tokens.shape) < 0.15
    chosen[:, 0] = True
    labels = tokens.masked_fill(~chosen, -100)
    return tokens.masked_fill(chosen, MASK), labels


class ProteinMLM(LightningModule):
    def __init__(self, width=64):
        super().__init__()
        self.embed = nn.Embedding(KMERS + 1, width)
        self.position = nn.Parameter(torch.randn(LENGTH, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.decoder = nn.Linear(width, KMERS)

    def forward(self, tokens):
        return self.transform(self.encoder(self.embed(tokens) + self.position))

    def training_step(self, batch, batch_idx):
        tokens, labels = batch
        hidden = self(tokens)
        logits = self.decoder(hidden)  # costs time
        loss = F.cross_entropy(logits.view(-1, KMERS), labels.view(-1), ignore_index=-100)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=5e-4, weight_decay=0.01, fused=True)


if __name__ == "__main__":
    seed_everything(7)
    loader = DataLoader(ProteinWindows(720), batch_size=8, shuffle=True, collate_fn=mask_tokens)
    trainer = Trainer(
        max_epochs=4,
        accelerator="cpu",
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        logger=False,
    )
    trainer.fit(ProteinMLM(), loader)
