"""A small head is trained on top of a pretrained transformer encoder to grade reviews. The mistake: the encoder is only
left out of the optimizer, its parameters still require gradients.
---
expect: PD323
fix:
  ? "        self.encoder = load_encoder()\\n"
  : "        self.encoder = load_encoder().requires_grad_(False)\\n"
half: tune
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

VOCAB = 5_000
LENGTH = 40
UNK = 1


class Encoder(nn.Module):
    def __init__(self, dim=128, layers=2, heads=4):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, dim)
        self.positions = nn.Parameter(torch.randn(LENGTH, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, ids):
        return self.layers(self.tokens(ids) + self.positions)


def load_encoder():
    """Stands for the checkpoint of the masked-language-model run."""
    with torch.random.fork_rng():
        torch.manual_seed(1234)
        return Encoder()


class AttentionPool(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.query = nn.Linear(dim, 1)

    def forward(self, states):
        weights = self.query(states).softmax(dim=1)
        return (weights * states).sum(dim=1)


class ReviewGrader(L.LightningModule):
    def __init__(self, dim=128, classes=5, lr=1e-3, word_dropout=0.1):
        super().__init__()
        self.encoder = load_encoder()
        self.head = nn.Sequential(AttentionPool(dim), nn.Linear(dim, 128), nn.GELU(), nn.Linear(128, classes))
        self.lr = lr
        self.word_dropout = word_dropout

    def forward(self, ids):
        return self.head(self.encoder(ids))

    def training_step(self, batch, batch_idx):
        ids, grade = batch
        dropped = torch.rand(ids.shape, device=ids.device) < self.word_dropout
        logits = self(ids.masked_fill(dropped, UNK))
        loss = F.cross_entropy(logits, grade)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        ids, grade = batch
        self.log("val_acc", (self(ids).argmax(dim=1) == grade).float().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.head.parameters(), lr=self.lr, weight_decay=0.01)


def make_reviews(n, seed):
    generator = torch.Generator().manual_seed(seed)
    grade = torch.randint(0, 5, (n,), generator=generator)
    ids = torch.randint(2, VOCAB, (n, LENGTH), generator=generator)
    opinion = torch.rand(n, LENGTH, generator=generator) < 0.2
    words = 10 + 50 * grade[:, None] + torch.randint(0, 50, (n, LENGTH), generator=generator)
    return TensorDataset(torch.where(opinion, words, ids), grade)


if __name__ == "__main__":
    L.seed_everything(11)
    train = DataLoader(make_reviews(1_920, seed=0), batch_size=32, shuffle=True)
    val = DataLoader(make_reviews(128, seed=1), batch_size=64)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(ReviewGrader(), train, val)
