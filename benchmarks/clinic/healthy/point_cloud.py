"""A classifier of point clouds in the manner of PointNet: shared layers per point, a maximum over points.
---
half: score
"""

import lightning as L
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

N_CLASSES = 8


def layer(n_in, n_out):
    return nn.Sequential(nn.Conv1d(n_in, n_out, 1, bias=False), nn.BatchNorm1d(n_out), nn.ReLU())


class PointNet(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.points = nn.Sequential(layer(3, 64), layer(64, 64), layer(64, 256))
        self.head = nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, N_CLASSES))
        self.accuracy = MulticlassAccuracy(N_CLASSES)

    def forward(self, clouds):
        return self.head(self.points(clouds).amax(-1))

    def training_step(self, batch, batch_idx):
        clouds, labels = batch
        return nn.functional.cross_entropy(self(clouds), labels)

    def validation_step(self, batch, batch_idx):
        clouds, labels = batch
        self.accuracy.update(self(clouds), labels)

    def on_validation_epoch_end(self):
        self.log("val_accuracy", self.accuracy)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


def batches(n_clouds):
    data = TensorDataset(torch.randn(n_clouds, 3, 256), torch.randint(0, N_CLASSES, (n_clouds,)))
    return DataLoader(data, sampler=BatchSampler(RandomSampler(data), 24, drop_last=True), batch_size=None)


if __name__ == "__main__":
    L.seed_everything(1)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(PointNet(), batches(60 * 24), batches(3 * 24))
