"""Trains a mel-spectrogram tagger for 24 music tags; the running AUROC of the epoch is computed again on each training
step.
---
expect: PD509
fix:
  ? |-
    self.train_auroc.update(logits.detach(), tags)
            self.log("train_auroc", self.train_auroc.compute())  # costs time
            return loss
  : |-
    self.train_auroc.update(logits.detach(), tags)
            return loss
  ? |-
    def on_train_epoch_end(self):
  : |-
    def on_train_epoch_end(self):
            self.log("train_auroc", self.train_auroc.compute())
half: score
"""

import lightning
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler
from torchmetrics.classification import MultilabelAUROC

TAGS, MELS, FRAMES = 24, 48, 80


class Clips(Dataset):
    """Log-mel spectrograms of song excerpts with multi-hot tags, fetched a batch at a time."""

    def __init__(self, mels, tags):
        self.mels, self.tags = mels, tags

    def __len__(self):
        return len(self.tags)

    def __getitem__(self, index):
        return self.mels[index], self.tags[index]


def stage(channels_in, channels_out):
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )


class Tagger(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 5, stride=2, padding=2, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            stage(16, 32),
            stage(32, 48),
        )
        self.head = nn.Linear(48 * (MELS // 8), TAGS)
        self.criterion = nn.BCEWithLogitsLoss()
        self.train_auroc = MultilabelAUROC(TAGS, average="macro", validate_args=False)

    def forward(self, mels):
        pooled = self.features(mels.unsqueeze(1)).mean(dim=3)
        return self.head(pooled.flatten(1))

    def training_step(self, batch, batch_idx):
        mels, tags = batch
        logits = self(mels)
        loss = self.criterion(logits, tags.float())
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        self.train_auroc.update(logits.detach(), tags)
        self.log("train_auroc", self.train_auroc.compute())  # costs time
        return loss

    def on_train_epoch_end(self):
        self.train_auroc.reset()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


def make_clips(count, seed):
    generator = torch.Generator().manual_seed(seed)
    tags = (torch.rand(count, TAGS, generator=generator) < 0.15).long()
    timbre = torch.randn(TAGS, MELS, generator=generator)
    envelope = (tags.float() @ timbre).unsqueeze(2)
    mels = 0.6 * envelope + torch.randn(count, MELS, FRAMES, generator=generator)
    return Clips(mels, tags)


if __name__ == "__main__":
    lightning.seed_everything(19)
    clips = make_clips(3600, seed=8)
    sampler = BatchSampler(RandomSampler(clips), batch_size=24, drop_last=True)
    loader = DataLoader(clips, batch_size=None, sampler=sampler)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Tagger(), loader)
