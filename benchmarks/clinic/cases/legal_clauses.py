"""Classifies the clauses of contracts (liability, termination, ...) with a small Transformer over word pieces. Each
batch is padded to the length of the longest clause of the whole corpus, several times as long as the clauses of
most batches; pad to the longest clause of the batch (padding is masked, so that the losses stay the same).
---
expect: PD116
fix:
  ? |2-
            tokens = torch.zeros(len(clauses), self.max_length, dtype=torch.long)  # costs time
  : |2-
            tokens = torch.zeros(len(clauses), max(map(len, clauses)), dtype=torch.long)
half: score
"""

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import MulticlassAccuracy

KINDS = ("liability", "termination", "payment", "confidentiality", "warranty", "governing law", "assignment", "other")
VOCABULARY = 6000
PAD = 0


def draft_contracts(clauses, seed):
    """Tokenized clauses; most have a few dozen word pieces, definitions and schedules a few hundred."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(3.7, 0.4, clauses), 6, 220).astype(int)
    lengths[rng.choice(clauses, 3, replace=False)] = (198, 207, 220)
    kinds = rng.integers(len(KINDS), size=clauses)
    terms = rng.integers(1, VOCABULARY, (len(KINDS), 150))
    texts = []
    for length, kind in zip(lengths, kinds, strict=False):
        common = rng.integers(1, VOCABULARY, length)
        typical = rng.choice(terms[kind], length)
        texts.append(np.where(rng.random(length) < 0.15, typical, common))
    return texts, kinds


class ClauseDataset(Dataset):
    def __init__(self, texts, kinds):
        self.texts = [torch.from_numpy(text) for text in texts]
        self.kinds = torch.from_numpy(kinds)

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return self.texts[index], self.kinds[index]


class PadCollate:
    def __init__(self, max_length):
        self.max_length = max_length

    def __call__(self, samples):
        clauses, kinds = zip(*samples, strict=False)
        tokens = torch.zeros(len(clauses), self.max_length, dtype=torch.long)  # costs time
        for row, clause in enumerate(clauses):
            tokens[row, : len(clause)] = clause
        return tokens, torch.stack(kinds)


class ClauseDataModule(L.LightningDataModule):
    def __init__(self, batch_size=16):
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage):
        texts, kinds = draft_contracts(3600, seed=7)
        self.train_clauses = ClauseDataset(texts[:3200], kinds[:3200])
        self.val_clauses = ClauseDataset(texts[3200:], kinds[3200:])
        self.collate = PadCollate(max(map(len, texts)))

    def train_dataloader(self):
        return DataLoader(self.train_clauses, self.batch_size, shuffle=True, collate_fn=self.collate)

    def val_dataloader(self):
        return DataLoader(self.val_clauses, self.batch_size, collate_fn=self.collate)


class ClauseClassifier(L.LightningModule):
    def __init__(self, width=48, heads=3, layers=2, max_positions=512, learning_rate=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.words = nn.Embedding(VOCABULARY, width, padding_idx=PAD)
        self.positions = nn.Embedding(max_positions, width)
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, len(KINDS))
        self.accuracy = MulticlassAccuracy(len(KINDS))

    def forward(self, tokens):
        padding = tokens == PAD
        x = self.words(tokens) + self.positions.weight[: tokens.shape[1]]
        x = self.encoder(x, src_key_padding_mask=padding)
        x = x.masked_fill(padding[..., None], 0.0).sum(1) / (~padding).sum(1, keepdim=True)
        return self.head(x)

    def training_step(self, batch, batch_idx):
        tokens, kinds = batch
        loss = F.cross_entropy(self(tokens), kinds)
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(kinds))
        return loss

    def validation_step(self, batch, batch_idx):
        tokens, kinds = batch
        self.accuracy.update(self(tokens), kinds)
        self.log("val_accuracy", self.accuracy, batch_size=len(kinds))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.learning_rate, fused=True)


def main():
    L.seed_everything(23)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=2,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(ClauseClassifier(), datamodule=ClauseDataModule())
    metrics = trainer.callback_metrics
    print(f"train loss {metrics['train_loss']:.4f}, validation accuracy {metrics['val_accuracy']:.3f}")


if __name__ == "__main__":
    main()
