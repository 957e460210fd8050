"""A recurrent tagger labels named entities in synthetic sentences. In every training step it logs precision, recall
and F1 of each of the many entity tags, both per step and per epoch, through self.log_dict.
---
expect: PD502
half: score
fix:
  ? |2-
            precision = hits / guessed.clamp(min=1)
            recall = hits / present.clamp(min=1)
            f1 = 2 * precision * recall / (precision + recall).clamp(min=1e-6)
            for i, tag in enumerate(TAGS):
                values = {f"{tag}/precision": precision[i], f"{tag}/recall": recall[i], f"{tag}/f1": f1[i]}
                self.log_dict(values, on_step=True, on_epoch=True)  # costs time
            return loss
  : |2-
            self.counts += torch.stack([hits, guessed, present])
            return loss

        def on_train_epoch_start(self):
            self.counts = torch.zeros(3, len(TAGS), device=self.device)

        def on_train_epoch_end(self):
            hits, guessed, present = self.counts
            precision = hits / guessed.clamp(min=1)
            recall = hits / present.clamp(min=1)
            f1 = 2 * precision * recall / (precision + recall).clamp(min=1e-6)
            for i, tag in enumerate(TAGS):
                values = {f"{tag}/precision": precision[i], f"{tag}/recall": recall[i], f"{tag}/f1": f1[i]}
                self.log_dict(values)
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ENTITIES = ["person", "place", "company", "date", "money", "product", "event", "law"]
TAGS = ["O"] + [f"{prefix}-{entity}" for entity in ENTITIES for prefix in "BI"]
VOCAB = 4000
LENGTH = 28


def make_sentences(count, seed):
    gen = torch.Generator().manual_seed(seed)
    words = torch.randint(VOCAB, (count, LENGTH), generator=gen)
    starts = words % 5 == 0
    kinds = (words // 5) % len(ENTITIES)
    tags = torch.where(starts, 1 + 2 * kinds, 0)
    follows = torch.roll(tags, 1, dims=1)
    follows[:, 0] = 0
    inside = (follows > 0) & (tags == 0) & (words % 3 > 0)
    return TensorDataset(words, torch.where(inside, follows + 1, tags))


class EntityTagger(L.LightningModule):
    def __init__(self, dim=64, hidden=72, lr=3e-3):
        super().__init__()
        self.lr = lr
        self.words = nn.Embedding(VOCAB, dim)
        self.rnn = nn.LSTM(dim, hidden, batch_first=True, bidirectional=True)
        self.drop = nn.Dropout(0.3)
        self.out = nn.Linear(2 * hidden, len(TAGS))

    def forward(self, words):
        states, _ = self.rnn(self.words(words))
        return self.out(self.drop(states))

    def training_step(self, batch, batch_idx):
        words, tags = batch
        logits = self(words).flatten(0, 1)
        tags = tags.flatten()
        loss = F.cross_entropy(logits, tags)
        self.log("train_loss", loss)

        guess = logits.detach().argmax(1)
        hits = torch.bincount(tags[guess == tags], minlength=len(TAGS)).float()
        guessed = torch.bincount(guess, minlength=len(TAGS)).float()
        present = torch.bincount(tags, minlength=len(TAGS)).float()
        precision = hits / guessed.clamp(min=1)
        recall = hits / present.clamp(min=1)
        f1 = 2 * precision * recall / (precision + recall).clamp(min=1e-6)
        for i, tag in enumerate(TAGS):
            values = {f"{tag}/precision": precision[i], f"{tag}/recall": recall[i], f"{tag}/f1": f1[i]}
            self.log_dict(values, on_step=True, on_epoch=True)  # costs time
        return loss

    def validation_step(self, batch, batch_idx):
        words, tags = batch
        logits = self(words)
        self.log("val_loss", F.cross_entropy(logits.flatten(0, 1), tags.flatten()), batch_size=len(words))
        self.log("val_acc", (logits.argmax(-1) == tags).float().mean(), batch_size=len(words))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


if __name__ == "__main__":
    L.seed_everything(8)
    train_loader = DataLoader(make_sentences(2144, 1), batch_size=32, shuffle=True)
    val_loader = DataLoader(make_sentences(640, 2), batch_size=64)
    trainer = L.Trainer(accelerator="cpu", max_epochs=3, enable_progress_bar=False)
    trainer.fit(EntityTagger(), train_loader, val_loader)
    print("validation accuracy", float(trainer.callback_metrics["val_acc"]))
