"""PerfDoctor with LightningCLI, without code changes.

``python examples/07_lightning_cli.py fit --trainer.callbacks+=lightning_perf.PerfDoctor`` adds it on the command line.
Without arguments, the example uses these and limits the output to the console report. (A few seconds on a CPU; needs
``jsonargparse[signatures]``.)
"""

import sys

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningCLI
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ARGUMENTS = ["fit", "--trainer.callbacks+=lightning_perf.PerfDoctor", "--trainer.callbacks.reports=[console]"]


class Model(LightningModule):
    """Two layers.

    Args:
        width: Width of the hidden layer.
    """

    def __init__(self, width: int = 256):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 1))

    def training_step(self, batch, batch_idx):
        return self.layers(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Data(LightningDataModule):
    """Random rows, fetched one by one, which is slow."""

    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.rand(6400, 16)), batch_size=128)


def main():
    """Run LightningCLI."""
    given = sys.argv[1:] if __name__ == "__main__" else []
    cli = LightningCLI(
        Model,
        Data,
        args=given or ARGUMENTS,
        save_config_callback=None,
        trainer_defaults={
            "max_epochs": 3,
            "accelerator": "cpu",
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
        },
    )
    doctor = next(one for one in cli.trainer.callbacks if type(one).__name__ == "PerfDoctor")
    print("Verdict:", doctor.session.verdict.text)
    return doctor.session


if __name__ == "__main__":
    main()
