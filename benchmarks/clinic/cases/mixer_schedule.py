r"""MLP-Mixer on small images with a warmup-cosine learning rate; the LambdaLR function builds the whole schedule again
at every step.
---
expect: PD512
half: score
fix:
  ? "        def factor(step):"
  : "        schedule = warmup_cosine(self.total_steps, self.warmup_steps)\n\n        def factor(step):"
  ? "            return warmup_cosine(self.total_steps, self.warmup_steps)[step]  # costs time"
  : "            return schedule[step]"
"""

import math

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


def warmup_cosine(total_steps, warmup_steps, floor=0.01):
    """Factor of the learning rate for each step of the training."""
    warmup = [(i + 1) / warmup_steps for i in range(warmup_steps)]
    rest = total_steps - warmup_steps
    decay = [floor + 0.5 * (1 - floor) * (1 + math.cos(math.pi * i / rest)) for i in range(rest)]
    return warmup + decay


class MixerBlock(nn.Module):
    def __init__(self, patches, dim):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.tokens = nn.Sequential(nn.Linear(patches, 2 * patches), nn.GELU(), nn.Linear(2 * patches, patches))
        self.channels = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Mixer(LightningModule):
    def __init__(self, dim=96, patch=8, depth=3, classes=10, total_steps=20000, warmup_steps=500):
        super().__init__()
        self.total_steps, self.warmup_steps = total_steps, warmup_steps
        self.stem = nn.Conv2d(3, dim, patch, stride=patch)
        self.blocks = nn.Sequential(*[MixerBlock((32 // patch) ** 2, dim) for _ in range(depth)])
        self.head = nn.Linear(dim, classes)

    def forward(self, images):
        x = self.stem(images).flatten(2).transpose(1, 2)
        return self.head(self.blocks(x).mean(dim=1))

    def training_step(self, batch, batch_idx):
        images, labels = batch
        return F.cross_entropy(self(images), labels)

    def configure_optimizers(self):
        matrices = [p for p in self.parameters() if p.ndim > 1]
        others = [p for p in self.parameters() if p.ndim <= 1]
        groups = [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=1e-3, fused=True)

        def factor(step):
            return warmup_cosine(self.total_steps, self.warmup_steps)[step]  # costs time

        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


if __name__ == "__main__":
    seed_everything(8)
    images = torch.randn(4800, 3, 32, 32)
    labels = (images.mean(dim=(1, 2, 3)) * 300).long().clamp(-5, 4) + 5
    data = TensorDataset(images, labels)
    batches = BatchSampler(RandomSampler(data), batch_size=32, drop_last=True)
    loader = DataLoader(data, sampler=batches, batch_size=None)
    trainer = Trainer(
        max_epochs=4,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Mixer(), loader)
