"""A small transformer is pre-trained on law texts by masked-token prediction, and the vocabulary head scores every
position although only the masked ones (15 %) enter the loss.
---
expect: PD325
fix:
  ? |2
            logits = self.head(hidden)  # costs time
            return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE)  # costs time
  : |2
            chosen = labels != IGNORE
            return F.cross_entropy(self.head(hidden[chosen]), labels[chosen])
half: score
"""

import lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

VOCAB, LENGTH, WIDTH = 6000, 64, 160
MASK, FIRST_WORD, IGNORE = 1, 2, -100


class Statutes(Dataset):
    """Paragraphs in memory; a batch is one indexing operation."""

    def __init__(self, count):
        gen = torch.Generator().manual_seed(11)
        rank = torch.rand(count, LENGTH, generator=gen).pow(3)  # frequent words first, roughly Zipf
        words = (rank * (VOCAB - FIRST_WORD)).long() + FIRST_WORD
        words[:, 1::2] = (words[:, ::2] * 7 + 13) % (VOCAB - FIRST_WORD) + FIRST_WORD  # learnable pairs
        self.words = words

    def __len__(self):
        return len(self.words)

    def __getitems__(self, index):
        return self.words[index]


def as_is(batch):
    return batch


class StatuteModel(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCAB, WIDTH)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        layer = nn.TransformerEncoderLayer(
            WIDTH, nhead=4, dim_feedforward=4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, num_layers=3, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB))

    def forward(self, words):
        return self.encoder(self.words(words) + self.places)

    def mask(self, words):
        hide = torch.rand(words.shape, device=words.device) < 0.15
        return words.masked_fill(hide, MASK), words.masked_fill(~hide, IGNORE)

    def training_step(self, words, batch_idx):
        visible, labels = self.mask(words)
        hidden = self(visible)
        logits = self.head(hidden)  # costs time
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE)  # costs time

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=5e-4, weight_decay=0.01, fused=True)


if __name__ == "__main__":
    lightning.seed_everything(3, verbose=False)
    loader = DataLoader(Statutes(408), batch_size=12, shuffle=True, collate_fn=as_is, drop_last=True)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(StatuteModel(), loader)
