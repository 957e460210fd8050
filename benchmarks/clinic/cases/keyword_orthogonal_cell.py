"""Keyword spotting on synthetic log-mel frames with an orthogonal recurrent cell; the time goes into rebuilding
the orthogonal matrix for every frame.
---
expect: PD328
fix:
  logits = self(frames): 'with nn.utils.parametrize.cached(): logits = self(frames)'
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import orthogonal
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

KEYWORDS, MELS, FRAMES = 12, 40, 128


def synth_utterances(count, seed):
    gen = torch.Generator().manual_seed(seed)
    shapes = torch.Generator().manual_seed(99)
    templates = torch.randn(KEYWORDS, 4, MELS, generator=shapes)
    label = torch.randint(0, KEYWORDS, (count,), generator=gen)
    coarse = templates[label].transpose(1, 2)
    speech = F.interpolate(coarse, size=FRAMES, mode="linear")
    gain = 0.5 + torch.rand(count, 1, 1, generator=gen)
    return speech * gain + 0.8 * torch.randn(count, MELS, FRAMES, generator=gen), label


class OrthogonalCell(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.drive = nn.Linear(width, width)
        self.recur = orthogonal(nn.Linear(width, width, bias=False), orthogonal_map="cayley")

    def forward(self, sequence):
        drive = self.drive(sequence)
        state = torch.zeros_like(drive[:, 0])
        for t in range(drive.shape[1]):
            state = torch.tanh(drive[:, t] + self.recur(state))  # costs time
        return state


class KeywordSpotter(L.LightningModule):
    def __init__(self, width=64):
        super().__init__()
        self.frontend = nn.Sequential(
            nn.Conv1d(MELS, 96, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv1d(96, width, 5, stride=2, padding=2),
            nn.ReLU(),
        )
        self.cell = OrthogonalCell(width)
        self.classify = nn.Linear(width, KEYWORDS)

    def forward(self, frames):
        features = self.frontend(frames).transpose(1, 2)
        return self.classify(self.cell(features))

    def training_step(self, batch, batch_idx):
        frames, label = batch
        logits = self(frames)
        loss = F.cross_entropy(logits, label)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        frames, label = batch
        self.log("val_acc", (self.forward(frames).argmax(1) == label).float().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def loader(data, batch_size, shuffle):
    order = RandomSampler(data) if shuffle else range(len(data))
    return DataLoader(data, sampler=BatchSampler(order, batch_size, drop_last=shuffle), batch_size=None)


def main():
    L.seed_everything(12)
    torch.set_num_threads(1)
    train = TensorDataset(*synth_utterances(4800, 1))
    val = TensorDataset(*synth_utterances(480, 2))
    trainer = L.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, max_epochs=4
    )
    trainer.fit(KeywordSpotter(), loader(train, 64, True), loader(val, 160, False))
    print("val_acc", float(trainer.callback_metrics["val_acc"]))


if __name__ == "__main__":
    main()
