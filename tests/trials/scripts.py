"""Training scripts like those of users, as text; each test writes one into a folder and runs it there."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}

MODEL = """
import torch
from {package} import LightningDataModule, LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

QUIET = dict(accelerator="cpu", enable_model_summary=False, enable_progress_bar=False)

class Model(LightningModule):
    def __init__(self, width: int = 4):
        super().__init__()
        self.layer = torch.nn.Linear(width, 1)

    def training_step(self, batch, batch_idx):
        loss = self.layer(batch[0]).square().mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.layer(batch[0]).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

def data(n=800):
    return TensorDataset(torch.arange(4.0 * n).reshape(n, 4) / n)
"""

# argparse, a package run with -m, DataModule, own sampler, accumulation, own logger and checkpoints, resume.
PACKAGE = (
    MODEL.format(package="lightning.pytorch")
    + """
import argparse
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

class Backwards(torch.utils.data.Sampler):
    def __len__(self):
        return 800

    def __iter__(self):
        return iter(range(799, -1, -1))

class Data(LightningDataModule):
    def train_dataloader(self):
        return DataLoader(data(), batch_size=4, sampler=Backwards())

    def val_dataloader(self):
        return DataLoader(data(8), batch_size=4)

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--resume")
    arguments = parser.parse_args()
    checkpoints = ModelCheckpoint("kept", save_last=True, every_n_train_steps=30)
    trainer = Trainer(max_epochs=arguments.epochs, accumulate_grad_batches=2, callbacks=[checkpoints],
                      logger=CSVLogger("logs"), log_every_n_steps=5, **QUIET)
    trainer.fit(Model(), Data(), ckpt_path=arguments.resume)
    trainer.save_checkpoint("final.ckpt")
    print("trained to the end")
"""
)

# LightningCLI reads its config file; jsonargparse inspects wrapped signatures.
CLI = (
    MODEL.format(package="lightning.pytorch")
    + """
from lightning.pytorch.cli import LightningCLI

class Data(LightningDataModule):
    def __init__(self, batch_size: int = 2):
        super().__init__()
        self.batch_size = batch_size

    def train_dataloader(self):
        return DataLoader(data(), batch_size=self.batch_size)

if __name__ == "__main__":
    LightningCLI(Model, Data)
    print("trained to the end")
"""
)
CLI_CONFIG = """
trainer:
  accelerator: cpu
  max_epochs: 4
  enable_progress_bar: false
  logger:
    class_path: lightning.pytorch.loggers.TensorBoardLogger
    init_args: {save_dir: tb}
data: {batch_size: 4}
"""

# The other namespace, several loaders, manual optimization, a profiler and a remote logger.
MANUAL = (
    MODEL.format(package="pytorch_lightning")
    + """
from pathlib import Path
from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities import CombinedLoader

class Service(Logger):
    name = version = "service"
    save_dir = "."

    def log_metrics(self, metrics, step=None):
        Path("sent.txt").write_text(str(metrics))

    def log_hyperparams(self, *args, **kwargs):
        Path("sent.txt").write_text("hyperparameters")

class Manual(Model):
    automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        loss = super().training_step(batch["a"], batch_idx) + super().training_step(batch["b"], batch_idx)
        self.manual_backward(loss)
        optimizer.step()

if __name__ == "__main__":
    loaders = CombinedLoader({"a": DataLoader(data(), batch_size=2), "b": DataLoader(data(400), batch_size=2)})
    trainer = Trainer(max_epochs=2, logger=Service(), enable_checkpointing=False, profiler="simple", **QUIET)
    trainer.fit(Manual(), loaders)
    print("trained to the end")
"""
)

DDP = (
    MODEL.format(package="lightning.pytorch")
    + """
if __name__ == "__main__":
    trainer = Trainer(devices=2, strategy="ddp", max_epochs=9, logger=False, **QUIET)
    trainer.fit(Model(), DataLoader(data(), batch_size=2))
    print("trained to the end")
"""
)

# A Trainer flag plants the outcome of a harmless treatment: no change, a slowdown, a crash, a hang, excessive memory or
# a NaN loss.
PLANTED = (
    MODEL.format(package="lightning.pytorch")
    + """
import time

class Sleepy(torch.utils.data.Dataset):
    def __len__(self):
        return 100000

    def __getitem__(self, index):
        time.sleep(0.001)
        return (torch.ones(4),)

class Planted(Model):
    def training_step(self, batch, batch_idx):
        told = self.trainer.log_every_n_steps
        if told == 102:
            time.sleep(0.02)
        if batch_idx > 5:
            if told == 103:
                raise RuntimeError("a kernel went missing")
            if told == 104:
                time.sleep(600)
            if told == 105:
                self.hoard = getattr(self, "hoard", []) + [torch.ones(2**26)]
            if told == 106:
                return super().training_step(batch, batch_idx) * float("nan")
        return super().training_step(batch, batch_idx)

if __name__ == "__main__":
    trainer = Trainer(max_epochs=3, logger=False, enable_checkpointing=False, **QUIET)
    trainer.fit(Planted(), DataLoader(Sleepy(), batch_size=4))
    print("trained to the end")
"""
)


def put(folder: Path, **files: str) -> None:
    """Write files named by their stem; Python files get ``.py``."""
    for stem, text in files.items():
        (folder / (f"{stem}.yaml" if stem == "config" else f"{stem}.py")).write_text(text)


def python(*arguments: str) -> list[str]:
    """Return a command that runs with this Python."""
    return [sys.executable, *arguments]


def tree(folder: Path) -> dict[str, bytes]:
    """Return all files below a folder with their content, without compiled Python."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def environment() -> dict[str, str]:
    """Use one thread per process."""
    return {**os.environ, **ENVIRONMENT}
