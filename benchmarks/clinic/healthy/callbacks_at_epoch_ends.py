"""Early stopping, a monitor of the rate and a callback that keeps averages, all of them at the ends of epochs only.
---
half: score
"""

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping
from torch import nn
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric


class Average(Callback):
    def on_train_epoch_end(self, trainer, pl_module):
        self.loss = float(pl_module.mean.compute())
        pl_module.mean.reset()


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(3, 16, 5), nn.ReLU(), nn.Conv1d(16, 16, 5), nn.ReLU(), nn.Flatten(), nn.Linear(384, 1)
        )
        self.mean = MeanMetric()

    def training_step(self, batch, batch_idx):
        loss = self.layers(batch).square().mean()
        if batch_idx % 50 == 0:
            self.mean.update(loss.detach())
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.layers(batch).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3, momentum=0.9, fused=True)


def make_loader(n_batches):
    return DataLoader([torch.rand(16, 3, 32) for _ in range(n_batches)], batch_size=None, shuffle=n_batches > 100)


trainer = Trainer(
    max_epochs=3,
    accelerator="cpu",
    logger=False,
    callbacks=[EarlyStopping("val_loss", patience=3), Average()],
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), make_loader(300), make_loader(6))
