"""A GRU predicts the next admission from coded hospital visits; the patient records end up in each checkpoint as a
hyperparameter.
---
expect: PD602
fix:
  "self.save_hyperparameters()": 'self.save_hyperparameters(ignore=["histories"])'
half: score
"""

import tempfile
from collections import Counter

import lightning
import numpy as np
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

CODES = 400
LENGTH = 32


def make_histories(n, seed):
    """Lists of diagnosis codes per patient, and whether the patient came back within 30 days."""
    rng = np.random.default_rng(seed)
    codes = 1 + (CODES * rng.random((n, LENGTH)) ** 2).astype(int).clip(max=CODES - 1)
    risk = np.random.default_rng(0).normal(size=CODES + 1)
    score = risk[codes].mean(axis=1) * 3.0 + risk[codes[:, -4:]].mean(axis=1)
    readmitted = rng.random(n) < 1.0 / (1.0 + np.exp(-score))
    return codes.tolist(), readmitted.astype(np.float32)


class Readmission(lightning.LightningModule):
    def __init__(self, histories, embedding=32, hidden=48, lr=2e-3):
        super().__init__()
        self.save_hyperparameters()  # costs time
        # rare codes start close to zero, so that they do not dominate at first
        counts = Counter(code for history in histories for code in history)
        frequency = torch.tensor([counts[code] for code in range(CODES + 1)], dtype=torch.float32)
        self.embedding = nn.Embedding(CODES + 1, embedding)
        with torch.no_grad():
            self.embedding.weight.mul_((frequency / frequency.max()).sqrt()[:, None])
        self.gru = nn.GRU(embedding, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 1)

    def forward(self, codes):
        _, last = self.gru(self.embedding(codes))
        return self.head(last[0]).squeeze(1)

    def training_step(self, batch, batch_idx):
        codes, readmitted = batch
        return F.binary_cross_entropy_with_logits(self(codes), readmitted)

    def validation_step(self, batch, batch_idx):
        codes, readmitted = batch
        loss = F.binary_cross_entropy_with_logits(self(codes), readmitted)
        self.log("val_loss", loss, batch_size=len(codes))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr, fused=True)


def loader(histories, labels, batch_size, shuffle):
    dataset = TensorDataset(torch.tensor(histories), torch.from_numpy(labels))
    order = RandomSampler(dataset) if shuffle else range(len(dataset))
    return DataLoader(dataset, sampler=BatchSampler(order, batch_size, drop_last=False), batch_size=None)


def main():
    lightning.seed_everything(3)
    train_histories, train_labels = make_histories(32_000, seed=1)
    val_histories, val_labels = make_histories(2_000, seed=2)
    model = Readmission(train_histories)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=1,
        logger=False,
        callbacks=[ModelCheckpoint(every_n_train_steps=50)],
        default_root_dir=tempfile.mkdtemp(),
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        model,
        loader(train_histories, train_labels, 128, shuffle=True),
        loader(val_histories, val_labels, 500, shuffle=False),
    )
    print(f"validation loss {trainer.callback_metrics['val_loss']:.4f}")


if __name__ == "__main__":
    main()
