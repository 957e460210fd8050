"""A recurrent network reads handwriting from the movements of the pen, letter by letter; the character error rate of
every training batch is computed in Python.
---
expect: PD509
fix:
  "self.watch_errors(scores, texts)": "if batch_idx % 25 == 0: self.watch_errors(scores, texts)"
half: score
"""

import lightning
import torch
import torchmetrics
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

ALPHABET = "abcdefghijklmnopqrstuvwxyz .,"
POINTS, LENGTH = 10, 64  # points of the pen per letter, letters per text


class PenTexts(Dataset):
    """Movements of the pen (dx, dy, pressure) for texts: each letter has a typical movement."""

    def __init__(self, count, seed):
        strokes = torch.randn(len(ALPHABET), POINTS, 3, generator=torch.Generator().manual_seed(0))
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(len(ALPHABET), (count, LENGTH), generator=generator)
        drawn = strokes[self.labels].reshape(count, LENGTH * POINTS, 3)
        self.movements = drawn + 1.2 * torch.randn(drawn.shape, generator=generator)
        self.texts = ["".join(ALPHABET[i] for i in line) for line in self.labels.tolist()]

    def __len__(self):
        return len(self.texts)

    def __getitems__(self, indices):
        return self.movements[indices], self.labels[indices], [self.texts[i] for i in indices]


def as_is(batch):
    return batch


def best_texts(scores):
    return ["".join(ALPHABET[i] for i in line) for line in scores.argmax(2).tolist()]


class PenReader(lightning.LightningModule):
    def __init__(self, width=96):
        super().__init__()
        self.letters = nn.Conv1d(3, width, POINTS, stride=POINTS)
        self.rnn = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.output = nn.Linear(2 * width, len(ALPHABET))
        self.train_errors = torchmetrics.text.CharErrorRate()
        self.val_errors = torchmetrics.text.CharErrorRate()

    def forward(self, movements):
        x = F.relu(self.letters(movements.transpose(1, 2))).transpose(1, 2)
        x, _ = self.rnn(x)
        return self.output(x)

    def watch_errors(self, scores, texts):
        rate = self.train_errors(best_texts(scores), texts)  # costs time
        self.log("train_errors", rate, batch_size=len(texts))

    def training_step(self, batch, batch_idx):
        movements, labels, texts = batch
        scores = self(movements)
        self.watch_errors(scores, texts)
        return F.cross_entropy(scores.flatten(0, 1), labels.flatten())

    def validation_step(self, batch, batch_idx):
        movements, _, texts = batch
        self.val_errors.update(best_texts(self(movements)), texts)

    def on_validation_epoch_end(self):
        self.log("val_errors", self.val_errors.compute())
        self.val_errors.reset()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3, fused=True)


if __name__ == "__main__":
    lightning.seed_everything(13)
    train = DataLoader(PenTexts(1280, 1), batch_size=32, shuffle=True, collate_fn=as_is)
    valid = DataLoader(PenTexts(64, 2), batch_size=32, collate_fn=as_is)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(PenReader(), train, valid)
    print("val_errors", trainer.callback_metrics["val_errors"].item())
