"""Trains a transformer over patches of quasar spectra with gradient accumulation, a weight-averaging callback and a
confusion matrix in the validation.
---
half: score
"""

import lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES, PATCHES, PATCH = 7, 24, 32


class Spectra(Dataset):
    def __init__(self, count: int, seed: int):
        gen = torch.Generator().manual_seed(seed)
        self.kind = torch.randint(CLASSES, (count,), generator=gen)
        lines = torch.randn(CLASSES, PATCHES, PATCH, generator=torch.Generator().manual_seed(0))
        self.flux = torch.randn(count, PATCHES, PATCH, generator=gen).add_(lines[self.kind], alpha=0.15)

    def __len__(self):
        return len(self.kind)

    def __getitems__(self, indices):
        index = torch.as_tensor(indices)
        return self.flux[index], self.kind[index]


def as_is(batch):
    return batch


class AverageWeights(lightning.Callback):
    """Exponential average of the weights, updated in place after each optimizer step."""

    def __init__(self, decay: float = 0.99):
        self.decay, self.seen = decay, 0

    def on_fit_start(self, trainer, module):
        self.weights = [p.detach() for p in module.parameters()]
        self.average = [w.clone() for w in self.weights]

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.global_step > self.seen:
            self.seen = trainer.global_step
            torch._foreach_lerp_(self.average, self.weights, 1 - self.decay)

    def on_fit_end(self, trainer, module):
        torch._foreach_copy_(self.weights, self.average)


class SpectrumClassifier(lightning.LightningModule):
    def __init__(self, width: int = 128, layers: int = 2):
        super().__init__()
        self.patch = nn.Linear(PATCH, width)
        self.position = nn.Parameter(0.02 * torch.randn(PATCHES, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)
        self.register_buffer("confusion", torch.zeros(CLASSES * CLASSES, dtype=torch.long), persistent=False)

    def forward(self, flux):
        return self.head(self.encoder(self.patch(flux) + self.position).mean(1))

    def training_step(self, batch, batch_idx):
        flux, kind = batch
        return F.cross_entropy(self(flux), kind)

    def on_validation_epoch_start(self):
        self.confusion.zero_()

    def validation_step(self, batch, batch_idx):
        flux, kind = batch
        pair = kind * CLASSES + self(flux).argmax(1)
        self.confusion += torch.bincount(pair, minlength=CLASSES * CLASSES)

    def on_validation_epoch_end(self):
        table = self.confusion.view(CLASSES, CLASSES).float()
        self.log("val_balanced_accuracy", (table.diagonal() / table.sum(1).clamp(min=1)).mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 1e-3, total_steps=self.trainer.estimated_stepping_batches
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


if __name__ == "__main__":
    lightning.seed_everything(10, verbose=False)
    train = DataLoader(Spectra(32 * 80, seed=1), batch_size=32, shuffle=True, collate_fn=as_is)
    valid = DataLoader(Spectra(512, seed=2), batch_size=128, collate_fn=as_is)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        accumulate_grad_batches=2,
        callbacks=[AverageWeights()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(SpectrumClassifier(), train, valid)
