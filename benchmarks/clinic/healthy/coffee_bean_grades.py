"""A network grades roasted coffee beans from a color histogram and a few measures of their shape.
It is validated after each epoch with accuracy, F1, confusion matrix and area under the curve, all of torchmetrics.
---
half: score
"""

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from torchmetrics import MetricCollection
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)

GRADES = 5
FEATURES = 160
TRAIN = 7680
VALIDATION = 1024
BATCH = 128


class Beans(Dataset):
    """Features of beans, and the grade that follows from roast, defects and size, with some disagreement."""

    def __init__(self, count: int, mixing: torch.Tensor):
        traits = torch.randn(count, 6)
        self.features = torch.tanh(traits @ mixing) + 0.2 * torch.randn(count, FEATURES)
        score = traits[:, 0] - traits[:, 1] ** 2 + traits[:, 2] * traits[:, 3] + 0.2 * torch.randn(count)
        self.grades = torch.bucketize(score, torch.tensor([-2.5, -1.2, -0.3, 0.6]))

    def __len__(self) -> int:
        return len(self.grades)

    def __getitems__(self, indices: list[int]):
        return self.features[indices], self.grades[indices]


def as_is(batch):
    return batch


class Gated(nn.Module):
    """A residual block whose update is gated."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.narrow(F.glu(self.widen(self.norm(x)), dim=-1))


class BeanGrader(L.LightningModule):
    def __init__(self, width: int = 224, blocks: int = 4, lr: float = 1e-3):
        super().__init__()
        self.lr = lr
        self.layers = nn.Sequential(
            nn.Linear(FEATURES, width), *(Gated(width) for _ in range(blocks)), nn.LayerNorm(width)
        )
        self.head = nn.Linear(width, GRADES)
        self.metrics = MetricCollection(
            {
                "accuracy": MulticlassAccuracy(GRADES, validate_args=False),
                "f1": MulticlassF1Score(GRADES, validate_args=False),
                "confusion": MulticlassConfusionMatrix(GRADES, validate_args=False),
                "auroc": MulticlassAUROC(GRADES, thresholds=50, validate_args=False),
            },
            prefix="val_",
        )

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(features))

    def training_step(self, batch, batch_idx):
        features, grades = batch
        return F.cross_entropy(self(features), grades)

    def validation_step(self, batch, batch_idx):
        features, grades = batch
        self.metrics.update(self(features).softmax(dim=1), grades)

    def on_validation_epoch_end(self):
        values = self.metrics.compute()
        self.confusion = values.pop("val_confusion")
        self.log_dict(values)
        self.metrics.reset()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=0.05, fused=True)


def main() -> None:
    L.seed_everything(13)
    mixing = torch.randn(6, FEATURES) * 0.6
    train_loader = DataLoader(Beans(TRAIN, mixing), batch_size=BATCH, shuffle=True, drop_last=True, collate_fn=as_is)
    val_loader = DataLoader(Beans(VALIDATION, mixing), batch_size=512, collate_fn=as_is)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=8,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(BeanGrader(), train_loader, val_loader)
    print({name: round(float(value), 3) for name, value in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
