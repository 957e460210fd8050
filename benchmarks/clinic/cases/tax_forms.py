"""Trains a masked-token transformer on the fields of tax forms; the vocabulary head and the softmax run on all
positions although only the 15 percent masked ones enter the loss.
---
expect: PD325
fix:
  "labels = labels.flatten()": |-
    labels = labels.flatten()
            masked = (labels != IGNORE).nonzero().squeeze(1)
            hidden, labels = hidden.index_select(0, masked), labels.index_select(0, masked)
half: score
"""

import lightning
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

VOCABULARY = 5000
FIELDS = 96
MASK = 1
IGNORE = -100


def synthetic_forms(count, seed):
    """Forms as rows of tokens: each field has its own range of values, which depends on the kind of household."""
    gen = torch.Generator().manual_seed(seed)
    household = torch.randint(8, (count, 1), generator=gen)
    amount = torch.randint(6, (count, FIELDS), generator=gen)
    return 2 + (torch.arange(FIELDS) * 50 + household * 6 + amount) % (VOCABULARY - 2)


class FormModel(lightning.LightningModule):
    def __init__(self, width=128, depth=2):
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.field = nn.Parameter(0.02 * torch.randn(FIELDS, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, VOCABULARY))

    def encode(self, tokens):
        return self.encoder(self.token(tokens) + self.field)

    def training_step(self, batch, batch_idx):
        (tokens,) = batch
        chosen = torch.rand(tokens.shape, device=self.device) < 0.15
        labels = tokens.masked_fill(~chosen, IGNORE)
        hidden = self.encode(tokens.masked_fill(chosen, MASK)).flatten(0, 1)
        labels = labels.flatten()
        logits = self.head(hidden)  # costs time
        return F.cross_entropy(logits, labels, ignore_index=IGNORE)  # costs time

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)
        warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.05, total_iters=20)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": warmup, "interval": "step"}}


if __name__ == "__main__":
    lightning.seed_everything(11, verbose=False)
    forms = TensorDataset(synthetic_forms(210, seed=5))
    loader = DataLoader(forms, batch_size=6, shuffle=True)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        gradient_clip_val=1.0,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(FormModel(), loader)
