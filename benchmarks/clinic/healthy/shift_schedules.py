"""Predicts from a month of shifts of a nurse how likely a swap request is; one validation pass per epoch,
a few logged scalars, and one small checkpoint for the best epoch.
---
half: score
"""

import tempfile

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset
from torchmetrics.classification import BinaryAUROC

DAYS = 28
SHIFTS = 5
MAX_EPOCHS = 5


def schedules(count: int, seed: int) -> TensorDataset:
    """Months of shifts (free, early, late, night, call); nights next to early shifts lead to swap requests."""
    generator = torch.Generator().manual_seed(seed)
    shifts = torch.multinomial(torch.tensor([0.3, 0.25, 0.2, 0.15, 0.1]), count * DAYS, True, generator=generator)
    shifts = shifts.view(count, DAYS)
    harsh = ((shifts[:, :-1] == 3) & (shifts[:, 1:] == 1)).sum(dim=1)
    weekend = (shifts.view(count, 4, 7)[:, :, 5:] > 0).sum(dim=(1, 2))
    tension = 0.9 * harsh + 0.3 * weekend - 2.8 + torch.randn(count, generator=generator)
    return TensorDataset(shifts, (tension > 0).float())


def batched(dataset: TensorDataset, batch_size: int, train: bool) -> DataLoader:
    order = RandomSampler(dataset) if train else SequentialSampler(dataset)
    return DataLoader(dataset, sampler=BatchSampler(order, batch_size, drop_last=train), batch_size=None)


class SwapModule(L.LightningModule):
    def __init__(self, width: int = 16, hidden: int = 512, learning_rate: float = 1e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.shift = nn.Embedding(SHIFTS, width)
        self.net = nn.Sequential(
            nn.Flatten(),
            nn.Linear(DAYS * width, hidden),
            nn.SiLU(),
            nn.Linear(hidden, hidden),
            nn.SiLU(),
            nn.Linear(hidden, 1),
            nn.Flatten(0),
        )
        self.auroc = BinaryAUROC(thresholds=100)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        shifts, swaps = batch
        loss = F.binary_cross_entropy_with_logits(self.net(self.shift(shifts)), swaps)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        shifts, swaps = batch
        logits = self.net(self.shift(shifts))
        self.auroc.update(logits, swaps.int())
        self.log("val_loss", F.binary_cross_entropy_with_logits(logits, swaps))
        self.log("val_auroc", self.auroc, on_step=False, on_epoch=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.learning_rate, fused=True)


def main() -> None:
    L.seed_everything(8)
    folder = tempfile.mkdtemp(prefix="shifts_")
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=MAX_EPOCHS,
        num_sanity_val_steps=0,
        log_every_n_steps=50,
        logger=CSVLogger(folder),
        callbacks=[
            EarlyStopping(monitor="val_loss", patience=3),
            ModelCheckpoint(dirpath=folder, monitor="val_loss", save_weights_only=True),
        ],
        enable_progress_bar=False,
    )
    train = batched(schedules(64_000, seed=8), batch_size=512, train=True)
    held_out = batched(schedules(4096, seed=9), batch_size=2048, train=False)
    trainer.fit(SwapModule(), train, held_out)


if __name__ == "__main__":
    main()
