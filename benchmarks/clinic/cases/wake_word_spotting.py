"""Keyword spotting on log-mel patches with a small convolutional net. The mistake is that the epoch's average
precision is computed from all predictions so far at every training step.
---
expect: PD509
half: score
fix:
  ? 'self.log("train_map", self.train_map.compute())'
  : 'self.log("train_loss", loss, on_step=False, on_epoch=True)'
  ? "self.train_map.reset()"
  : |-
    self.log("train_map", self.train_map.compute())
            self.train_map.reset()
"""

from collections.abc import Iterator

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler
from torchmetrics.classification import MulticlassAveragePrecision

KEYWORDS = 12
MELS = 40
FRAMES = 50


class LogMelDataset(Dataset):
    """Synthetic log-mel patches in memory; indexing with a tensor of rows returns a batch."""

    def __init__(self, num: int, seed: int) -> None:
        gen = torch.Generator().manual_seed(seed)
        prototypes = torch.randn(KEYWORDS, 1, MELS, FRAMES, generator=gen)
        self.labels = torch.randint(0, KEYWORDS, (num,), generator=gen)
        self.patches = torch.randn(num, 1, MELS, FRAMES, generator=gen)
        self.patches.add_(prototypes[self.labels], alpha=0.25)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.patches[rows], self.labels[rows]


class ShuffledBatches(Sampler[torch.Tensor]):
    """Yields the row numbers of a whole shuffled batch at a time."""

    def __init__(self, num: int, batch_size: int) -> None:
        self.num = num
        self.batch_size = batch_size

    def __len__(self) -> int:
        return self.num // self.batch_size

    def __iter__(self) -> Iterator[torch.Tensor]:
        order = torch.randperm(self.num)[: len(self) * self.batch_size]
        yield from order.split(self.batch_size)


class KeywordNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 5, stride=2, padding=2, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
        )
        self.classifier = nn.Linear(32 * width, KEYWORDS)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(patches))


class KeywordSpotter(L.LightningModule):
    def __init__(self, width: int = 8, lr: float = 2e-3) -> None:
        super().__init__()
        self.net = KeywordNet(width)
        self.train_map = MulticlassAveragePrecision(num_classes=KEYWORDS, validate_args=False)
        self.lr = lr

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> torch.Tensor:
        patches, labels = batch
        logits = self.net(patches)
        loss = F.cross_entropy(logits, labels)
        self.train_map.update(logits.detach().softmax(dim=1), labels)
        self.log("train_map", self.train_map.compute())  # costs time
        return loss

    def on_train_epoch_end(self) -> None:
        self.train_map.reset()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=1e-3)


def main() -> None:
    L.seed_everything(23)
    dataset = LogMelDataset(num=9600, seed=23)
    loader = DataLoader(dataset, sampler=ShuffledBatches(len(dataset), batch_size=64), batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(KeywordSpotter(), loader)
    print(f"train mAP {trainer.callback_metrics['train_map']:.4f}")


if __name__ == "__main__":
    main()
