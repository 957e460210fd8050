"""A one-dimensional convolutional network learns instruments with sign-gradient adversarial examples, and its time
goes to a second-order backward whose result is zero.
---
expect:
- PD339
fix:
  create_graph=True: retain_graph=True
half: tune
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

torch.set_num_threads(1)
BINS, FRAMES, CLASSES = 48, 64, 8


def make_clips(n, seed=4):
    """Constant-Q spectrograms of eight instruments that differ in their overtones and attack."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (n,), generator=g)
    overtones = torch.rand(CLASSES, 5, generator=g)
    attack = torch.linspace(2.0, 20.0, CLASSES)[y]
    pitch = torch.randint(0, 20, (n,), generator=g)
    spec = torch.zeros(n, BINS)
    for k, shift in enumerate((0, 12, 19, 24, 27)):
        spec.scatter_add_(1, (pitch + shift)[:, None].clamp(max=BINS - 1), overtones[y, k][:, None])
    t = torch.arange(FRAMES)[None]
    envelope = (1 - torch.exp(-t / attack[:, None])) * torch.exp(-t / 40)
    x = spec[:, :, None] * envelope[:, None] + 0.25 * torch.randn(n, BINS, FRAMES, generator=g)
    return TensorDataset(x, y)


class Block(nn.Module):
    def __init__(self, c, dilation):
        super().__init__()
        self.norm = nn.GroupNorm(4, c)
        self.conv = nn.Conv1d(c, c, 3, padding=dilation, dilation=dilation)

    def forward(self, x):
        return x + self.conv(F.silu(self.norm(x)))


class Instruments(L.LightningModule):
    def __init__(self, c=56, epsilon=0.004):
        super().__init__()
        self.epsilon = epsilon
        self.stem = nn.Conv1d(BINS, c, 3, padding=1)
        self.blocks = nn.Sequential(*[Block(c, d) for d in (1, 2, 4)])
        self.head = nn.Linear(c, CLASSES)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean(-1))

    def training_step(self, batch, _):
        x, y = batch
        x = x.requires_grad_(True)
        clean = F.cross_entropy(self(x), y)
        (direction,) = torch.autograd.grad(clean, x, create_graph=True)  # costs time
        robust = F.cross_entropy(self(x + self.epsilon * direction.sign()), y)
        loss = 0.5 * (clean + robust)
        self.log_dict({"loss": loss, "clean": clean, "robust": robust})
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=2e-3, weight_decay=1e-3, fused=True)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5)
        return {"optimizer": optimizer, "lr_scheduler": schedule}


def main():
    L.seed_everything(31)
    clips = make_clips(1920)
    batches = BatchSampler(RandomSampler(clips), 32, drop_last=True)
    loader = DataLoader(clips, sampler=batches, batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        max_epochs=5,
    )
    trainer.fit(Instruments(), loader)
    print({k: float(v) for k, v in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
