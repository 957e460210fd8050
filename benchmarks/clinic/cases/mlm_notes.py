"""Masked-language-model pretraining of a small Transformer on short notes; the vocabulary logits and the loss are
computed at every position although only the 15 % masked ones count.
---
expect: PD325
half: tune
fix:
  ? "logits = self.lm_head(self.norm(hidden))  # costs time"
  : "logits = self.lm_head(self.norm(hidden[labels != -100]))"
  ? "loss = F.cross_entropy(logits.view(-1, VOCAB), labels.view(-1), ignore_index=-100)  # costs time"
  : "loss = F.cross_entropy(logits, labels[labels != -100])"
"""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, Dataset

VOCAB = 3000
SEQ_LEN = 32
MASK_ID = 4
MLM_PROBABILITY = 0.15


class NotesDataset(Dataset):
    """Token ids of notes, all cut to the same length."""

    def __init__(self, n_notes=1200):
        gen = torch.Generator().manual_seed(3)
        zipf = 1.0 / torch.arange(1, VOCAB - 4).float()
        ids = torch.multinomial(zipf, n_notes * SEQ_LEN, replacement=True, generator=gen)
        self.notes = (ids + 5).view(n_notes, SEQ_LEN)

    def __len__(self):
        return len(self.notes)

    def __getitem__(self, i):
        return self.notes[i]


def mask_tokens(examples):
    inputs = torch.stack(examples)
    labels = inputs.clone()
    masked = torch.rand(inputs.shape) < MLM_PROBABILITY
    labels[~masked] = -100
    inputs = inputs.masked_fill(masked, MASK_ID)
    return inputs, labels


class MaskedLM(LightningModule):
    def __init__(self, dim=64, layers=2, heads=4):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, dim)
        self.positions = nn.Parameter(torch.randn(SEQ_LEN, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(
            dim, heads, dim_feedforward=4 * dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)
        self.lm_head = nn.Linear(dim, VOCAB)

    def training_step(self, batch, batch_idx):
        inputs, labels = batch
        hidden = self.encoder(self.tokens(inputs) + self.positions)
        logits = self.lm_head(self.norm(hidden))  # costs time
        loss = F.cross_entropy(logits.view(-1, VOCAB), labels.view(-1), ignore_index=-100)  # costs time
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=5e-4, weight_decay=0.01, fused=True)


if __name__ == "__main__":
    seed_everything(7)
    loader = DataLoader(NotesDataset(), batch_size=12, shuffle=True, collate_fn=mask_tokens, drop_last=True)
    model = MaskedLM()
    trainer = Trainer(
        accelerator="cpu", max_epochs=4, enable_progress_bar=False, enable_checkpointing=False, logger=False
    )
    trainer.fit(model, loader)
