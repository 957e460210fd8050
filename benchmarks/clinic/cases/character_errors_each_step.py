"""A speech model decodes its guesses and computes torchmetrics' CharErrorRate, an edit distance, in each training step.
---
expect: PD509
also:
  PD511: the metric is host code, and its line is the one that costs time
half: score
fix:
  'ERRORS_EVERY_N_STEPS = 1': 'ERRORS_EVERY_N_STEPS = 50'
"""

import lightning as L
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
from torchmetrics.text import CharErrorRate

ALPHABET = "abcdefghijklmnopqrstuvwxyz '"
LENGTH = 24
ERRORS_EVERY_N_STEPS = 1


def spell(ids):
    return ["".join(ALPHABET[letter] for letter in row) for row in ids.tolist()]


class Transcriber(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(80, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, len(ALPHABET))
        )
        self.errors = CharErrorRate()

    def training_step(self, batch, batch_idx):
        frames, letters = batch
        logits = self.net(frames)
        if batch_idx % ERRORS_EVERY_N_STEPS == 0:
            error_rate = self.errors(spell(logits.argmax(-1)), spell(letters))  # costs time
            self.log("train_cer", error_rate)
        return nn.functional.cross_entropy(logits.flatten(0, 1), letters.flatten())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    L.seed_everything(1)
    speech = TensorDataset(torch.randn(1600, LENGTH, 80), torch.randint(0, len(ALPHABET), (1600, LENGTH)))
    loader = DataLoader(speech, sampler=BatchSampler(RandomSampler(speech), 32, drop_last=True), batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Transcriber(), loader)
