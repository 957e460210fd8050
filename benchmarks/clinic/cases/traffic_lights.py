"""Classifies crops of traffic lights from a street camera into twelve signal states, with a table of training scores.
The scores are wanted per epoch only, but the way they are called works out their values for every batch as well.
---
expect: PD509
fix:
  "self.scores(logits, states)  # costs time": "self.scores.update(logits, states)"
half: score
"""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MetricCollection
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassAveragePrecision,
    MulticlassF1Score,
    MulticlassPrecision,
    MulticlassRecall,
)

STATES = 12


def film(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A dark box with some lamps on; the state says which, and in which color."""
    rng = torch.Generator().manual_seed(seed)
    states = torch.randint(STATES, (count,), generator=rng)
    lamp, color = states // 4, states % 4
    colors = torch.tensor([[1.0, 0.1, 0.1], [1.0, 0.7, 0.1], [0.1, 0.9, 0.3], [0.9, 0.9, 0.9]])
    y = torch.arange(32).view(1, 32, 1)
    x = torch.arange(16).view(1, 1, 16)
    middle = 6 + 10 * lamp + torch.randint(-2, 3, (count,), generator=rng)
    spot = torch.exp(-((y - middle.view(-1, 1, 1)) ** 2 + (x - 8) ** 2) / 8.0)
    crops = spot.unsqueeze(1) * colors[color].view(-1, 3, 1, 1)
    crops = crops * (0.4 + 0.6 * torch.rand(count, 1, 1, 1, generator=rng))
    return crops + 0.25 * torch.randn(crops.shape, generator=rng), states


class SignalNet(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(inplace=True),
            nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(inplace=True),
            nn.Flatten(),
            nn.Linear(32 * 8 * 4, STATES),
        )
        self.scores = MetricCollection(
            {
                "accuracy": MulticlassAccuracy(STATES, average="micro"),
                "precision": MulticlassPrecision(STATES),
                "recall": MulticlassRecall(STATES),
                "f1": MulticlassF1Score(STATES),
                "auroc": MulticlassAUROC(STATES),
                "average_precision": MulticlassAveragePrecision(STATES),
            },
            prefix="train/",
        )

    def forward(self, crops: torch.Tensor) -> torch.Tensor:
        return self.net(crops)

    def training_step(self, batch, batch_idx):
        crops, states = batch
        logits = self(crops)
        loss = nn.functional.cross_entropy(logits, states, label_smoothing=0.05)
        self.scores(logits, states)  # costs time
        self.log("train/loss", loss, on_step=False, on_epoch=True)
        return loss

    def on_train_epoch_end(self):
        self.log_dict(self.scores.compute())
        self.scores.reset()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


def main():
    L.seed_everything(41)
    loader = DataLoader(TensorDataset(*film(6400, seed=41)), batch_size=64, shuffle=True, drop_last=True)
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=7, logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(SignalNet(), loader)
    print({name: round(value.item(), 4) for name, value in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
