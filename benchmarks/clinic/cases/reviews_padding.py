"""Each batch of short reviews is padded to the greatest length that any text may have.
---
expect:
- PD116
half: score
fix:
  'length = MAX_LENGTH': 'length = max(len(tokens) for tokens, _ in batch)'
"""

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

MAX_LENGTH = 160
N_TOKENS = 5_000
PAD = 0


def make_reviews(n):
    rng = np.random.default_rng(0)
    reviews = []
    for _ in range(n):
        length = int(np.clip(rng.lognormal(3.1, 0.4), 5, MAX_LENGTH))
        label = int(rng.integers(2))
        tokens = rng.integers(1, N_TOKENS // 2, length) + label * (N_TOKENS // 4)
        reviews.append((torch.from_numpy(tokens), label))
    return reviews


def collate(batch):
    length = MAX_LENGTH
    ids = torch.full((len(batch), length), PAD)
    for row, (tokens, _) in enumerate(batch):
        ids[row, : len(tokens)] = tokens
    return ids, torch.tensor([label for _, label in batch])


class ReviewClassifier(L.LightningModule):
    def __init__(self, dim=64):
        super().__init__()
        self.tokens = nn.Embedding(N_TOKENS, dim, padding_idx=PAD)
        self.positions = nn.Embedding(MAX_LENGTH, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 4 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(dim, 2)

    def forward(self, ids):
        padding = ids == PAD
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        x = self.encoder(x, src_key_padding_mask=padding)
        kept = (~padding).unsqueeze(2)
        return self.head((x * kept).sum(dim=1) / kept.sum(dim=1))

    def training_step(self, batch, batch_idx):
        ids, labels = batch
        loss = F.cross_entropy(self(ids), labels)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


L.seed_everything(1)
loader = DataLoader(make_reviews(1_600), batch_size=16, shuffle=True, collate_fn=collate)
trainer = L.Trainer(
    accelerator="cpu",
    max_epochs=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(ReviewClassifier(), loader)
