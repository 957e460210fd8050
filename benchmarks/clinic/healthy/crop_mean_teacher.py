"""Trains a crop classifier on time series of satellite reflectances with few labeled fields (synthetic season curves),
semi-supervised: a mean teacher, the moving average of the student's weights, labels the other fields.
---
half: score
"""

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset

BANDS = 8
DATES = 36
CROPS = ("wheat", "maize", "rapeseed", "sugar beet", "potato", "grassland")


class FieldSeasons(Dataset):
    """Season curves of fields: each crop greens up and ripens at its own dates; clouds darken single dates."""

    def __init__(self, n_fields, seed):
        gen = torch.Generator().manual_seed(seed)
        crops = torch.Generator().manual_seed(8)
        day = torch.arange(DATES, dtype=torch.float)
        spring = 6 + 12 * torch.rand(len(CROPS), 1, generator=crops)
        harvest = spring + 8 + 8 * torch.rand(len(CROPS), 1, generator=crops)
        response = torch.randn(len(CROPS), BANDS, 1, generator=crops)
        self.crop = torch.randint(0, len(CROPS), (n_fields,), generator=gen)
        delay = 1.5 * torch.randn(n_fields, 1, generator=gen)
        green = torch.sigmoid(day - spring[self.crop] - delay) - torch.sigmoid(day - harvest[self.crop] - delay)
        self.series = response[self.crop] * green.unsqueeze(1) + 0.4 * torch.randn(
            n_fields, BANDS, DATES, generator=gen
        )
        clouds = torch.rand(n_fields, 1, DATES, generator=gen) < 0.15
        self.series.masked_fill_(clouds, -1.0)

    def __len__(self):
        return len(self.crop)

    def __getitems__(self, indices):
        indices = torch.as_tensor(indices)
        return self.series[indices], self.crop[indices]


def season_classifier(width=64):
    return nn.Sequential(
        nn.Conv1d(BANDS, width, 5, padding=2),
        nn.GELU(),
        nn.Conv1d(width, width, 5, padding=2),
        nn.GELU(),
        nn.Conv1d(width, width, 5, padding=2),
        nn.GELU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(width, len(CROPS)),
    )


class MeanTeacher(L.LightningModule):
    def __init__(self, lr=1e-3, decay=0.99, consistency=1.0):
        super().__init__()
        self.lr = lr
        self.consistency = consistency
        self.student = season_classifier()
        self.teacher = AveragedModel(self.student, multi_avg_fn=get_ema_multi_avg_fn(decay))
        self.teacher.requires_grad_(False)

    def training_step(self, batch, batch_idx):
        series, crop = batch["labeled"]
        unlabeled, _ = batch["unlabeled"]
        with torch.no_grad():
            target = self.teacher(unlabeled).softmax(dim=1)
        dropped = torch.rand(len(unlabeled), 1, DATES, device=unlabeled.device) < 0.2
        logits = self.student(torch.cat([series, unlabeled.masked_fill(dropped, -1.0)]))
        supervised = F.cross_entropy(logits[: len(series)], crop)
        agreement = F.cross_entropy(logits[len(series) :], target)
        loss = supervised + self.consistency * agreement
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(series))
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.teacher.update_parameters(self.student)

    def validation_step(self, batch, batch_idx):
        series, crop = batch
        accuracy = (self.teacher(series).argmax(dim=1) == crop).float().mean()
        self.log("val_accuracy", accuracy, batch_size=len(series))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.student.parameters(), lr=self.lr, weight_decay=0.01, fused=True)


def main():
    L.seed_everything(81)
    loaders = {
        "labeled": DataLoader(FieldSeasons(384, seed=1), batch_size=16, shuffle=True, drop_last=True, collate_fn=tuple),
        "unlabeled": DataLoader(
            FieldSeasons(19200, seed=2), batch_size=48, shuffle=True, drop_last=True, collate_fn=tuple
        ),
    }
    val = DataLoader(FieldSeasons(512, seed=3), batch_size=256, collate_fn=tuple)
    trainer = L.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(MeanTeacher(), L.pytorch.utilities.CombinedLoader(loaders, mode="max_size_cycle"), val)
    print({name: round(float(value), 4) for name, value in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
