"""Sound-event tagging on precomputed log-mel frames kept in memory, with a strided 2-D CNN and batched SpecAugment-like
masking.
---
half: score
"""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

MELS, FRAMES, EVENTS = 64, 96, 6


def make_clips(n=1200):
    gen = torch.Generator().manual_seed(0)
    tags = (torch.rand(n, EVENTS, generator=gen) < 0.3).float()
    patterns = torch.rand(EVENTS, MELS, generator=gen) ** 4
    envelope = torch.rand(n, EVENTS, FRAMES, generator=gen)
    clips = torch.einsum("ne,em,net->nmt", tags, patterns, envelope)
    clips += 0.3 * torch.randn(n, MELS, FRAMES, generator=gen)
    return clips[:, None], tags


class EventTagger(LightningModule):
    def __init__(self, width=32):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 5, stride=4, padding=2),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(2 * width, 4 * width, 3, stride=2, padding=1),
            nn.ReLU(inplace=True),
        ).to(memory_format=torch.channels_last)
        self.classifier = nn.Linear(4 * width, EVENTS)

    def forward(self, mel):
        return self.classifier(self.features(mel).mean(dim=(2, 3)))

    def training_step(self, batch, batch_idx):
        mel, tags = batch
        start = int(torch.randint(0, FRAMES - 8, (1,)))
        mel[..., start : start + 8] = 0.0
        loss = F.binary_cross_entropy_with_logits(self(mel), tags)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    seed_everything(23)
    loader = DataLoader(TensorDataset(*make_clips()), batch_size=24, shuffle=True, drop_last=True)
    trainer = Trainer(
        accelerator="cpu",
        precision="bf16-mixed",
        max_epochs=12,
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=False,
    )
    trainer.fit(EventTagger(), loader)
