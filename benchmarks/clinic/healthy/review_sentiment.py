"""A convolutional network over words learns the sentiment of reviews of very different lengths, which are batched by
similar length.
---
half: score
"""

import tempfile

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler

VOCABULARY, PAD = 5000, 0


class Reviews(Dataset):
    """Reviews whose sentiment shows in some of their words; lengths are log-normal."""

    def __init__(self, count, generator):
        lengths = torch.randn(count, generator=generator).mul(0.5).add(3.6).exp().long().clamp(8, 150)
        self.labels = torch.randint(0, 2, (count,), generator=generator)
        words = torch.randint(1, VOCABULARY, (int(lengths.sum()),), generator=generator)
        tone = torch.rand(len(words), generator=generator) < 0.15
        labels = self.labels.repeat_interleave(lengths)
        words[tone] = 1 + words[tone] % 300 + 300 * labels[tone]
        self.reviews = words.split(lengths.tolist())

    def __len__(self):
        return len(self.reviews)

    def __getitem__(self, index):
        return self.reviews[index], self.labels[index]


class LengthBatches(Sampler):
    """Shuffled batches of reviews of similar length."""

    def __init__(self, reviews, size):
        self.lengths, self.size = torch.tensor([len(review) for review in reviews]), size

    def __len__(self):
        return len(self.lengths) // self.size

    def __iter__(self):
        order = (self.lengths + 6 * torch.rand(len(self.lengths))).argsort()
        batches = order[: len(self) * self.size].view(-1, self.size)
        yield from batches[torch.randperm(len(batches))].tolist()


def collate(samples):
    reviews, labels = zip(*samples, strict=True)
    return pad_sequence(reviews, batch_first=True, padding_value=PAD), torch.stack(labels)


class SentimentModel(L.LightningModule):
    def __init__(self, size=96, filters=96, kernels=(2, 3, 5)):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, size, padding_idx=PAD)
        self.convolutions = nn.ModuleList(nn.Conv1d(size, filters, kernel, padding=kernel // 2) for kernel in kernels)
        self.head = nn.Sequential(nn.Dropout(0.3), nn.Linear(filters * len(kernels), 2))

    def forward(self, words):
        x = self.embedding(words).transpose(1, 2)
        return self.head(torch.cat([F.relu(conv(x)).amax(dim=2) for conv in self.convolutions], dim=1))

    def training_step(self, batch, batch_idx):
        words, label = batch
        loss = F.cross_entropy(self(words), label)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        words, label = batch
        accuracy = (self(words).argmax(dim=1) == label).float().mean()
        self.log("val_accuracy", accuracy, prog_bar=True, batch_size=len(label))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)]


if __name__ == "__main__":
    L.seed_everything(29)
    generator = torch.Generator().manual_seed(29)
    train, val = Reviews(3200, generator), Reviews(400, generator)
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=4, logger=CSVLogger(tempfile.mkdtemp()), callbacks=[LearningRateMonitor()]
    )
    trainer.fit(
        SentimentModel(),
        DataLoader(train, batch_sampler=LengthBatches(train.reviews, 64), collate_fn=collate),
        DataLoader(val, batch_sampler=LengthBatches(val.reviews, 100), collate_fn=collate),
    )
