"""A classifier for speech commands is trained on top of a pretrained convolutional encoder that stays fixed, but
gradients are computed for the encoder as well.
---
expect: PD323
fix:
  "# Only the head is trained, see configure_optimizers.": "self.encoder.requires_grad_(False)"
half: score
"""

import lightning
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

MELS, FRAMES, COMMANDS = 40, 96, 12


class Utterances(Dataset):
    """Log-mel spectrograms of one-second commands."""

    def __init__(self, count, seed):
        shapes = torch.randn(COMMANDS, MELS, 8, generator=torch.Generator().manual_seed(0))
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(COMMANDS, (count,), generator=generator)
        tracks = F.interpolate(shapes, FRAMES, mode="linear")
        self.mels = tracks[self.labels] + 1.5 * torch.randn(count, MELS, FRAMES, generator=generator)

    def __len__(self):
        return len(self.labels)

    def __getitems__(self, indices):
        return self.mels[indices], self.labels[indices]


def as_is(batch):
    return batch


def mask_time_and_mels(mels, most_frames=16, most_mels=8):
    """SpecAugment: one block of frames and one block of mel bands are set to zero per utterance."""
    count, bands, frames = mels.shape
    start = torch.randint(frames - most_frames, (count, 1))
    time = torch.arange(frames)
    keep_time = (time < start) | (time >= start + torch.randint(most_frames, (count, 1)))
    start = torch.randint(bands - most_mels, (count, 1))
    band = torch.arange(bands)
    keep_band = (band < start) | (band >= start + torch.randint(most_mels, (count, 1)))
    return mels * keep_time[:, None, :] * keep_band[:, :, None]


def build_encoder(width):
    layers, channels = [], MELS
    for dilation in (1, 2, 4, 8):
        layers += [
            nn.Conv1d(channels, width, 3, padding=dilation, dilation=dilation),
            nn.GroupNorm(4, width),
            nn.ReLU(),
        ]
        channels = width
    return nn.Sequential(*layers)


class AttentivePooling(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.score = nn.Sequential(nn.Conv1d(width, 64, 1), nn.Tanh(), nn.Conv1d(64, 1, 1))

    def forward(self, x):
        return (x * self.score(x).softmax(2)).sum(2)


class CommandClassifier(lightning.LightningModule):
    def __init__(self, pretrained, width=128):
        super().__init__()
        self.encoder = build_encoder(width)
        self.encoder.load_state_dict(pretrained)
        # Only the head is trained, see configure_optimizers.
        self.pool = AttentivePooling(width)
        self.head = nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, COMMANDS))

    def forward(self, mels):
        features = self.encoder(mels)  # costs time
        return self.head(self.pool(features))

    def training_step(self, batch, batch_idx):
        mels, command = batch
        return F.cross_entropy(self(mask_time_and_mels(mels)), command)

    def validation_step(self, batch, batch_idx):
        mels, command = batch
        accuracy = (self(mels).argmax(1) == command).float().mean()
        self.log("val_accuracy", accuracy, batch_size=len(mels))

    def configure_optimizers(self):
        parameters = [*self.pool.parameters(), *self.head.parameters()]
        return torch.optim.Adam(parameters, lr=2e-3, fused=True)


if __name__ == "__main__":
    lightning.seed_everything(11)
    pretrained = build_encoder(128).state_dict()  # stands for a checkpoint of self-supervised training
    train = DataLoader(Utterances(1520, 1), batch_size=40, shuffle=True, collate_fn=as_is)
    valid = DataLoader(Utterances(256, 2), batch_size=64, collate_fn=as_is)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(CommandClassifier(pretrained), train, valid)
    print("val_accuracy", trainer.callback_metrics["val_accuracy"].item())
