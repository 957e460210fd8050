"""A training without lightning-perf, to run, probe, try and compare from the command line.

    lightning-perf run --out runs/base -- python examples/12_plain_training.py
    lightning-perf data -- python examples/12_plain_training.py
    lightning-perf trial -- python examples/12_plain_training.py

docs/tutorial/measured-gain.md explains these commands. The dataset waits for each sample; the model is small.
"""

import argparse
import time

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, Dataset


class RemoteImages(Dataset):
    """256 images on slow remote storage."""

    def __len__(self):
        return 256

    def __getitem__(self, index):
        time.sleep(0.002)  # the network
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, 32, 32, generator=generator), index % 10


class Classifier(LightningModule):
    """A small convolutional network."""

    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 10)
        )

    def training_step(self, batch, batch_idx):
        images, labels = batch
        return nn.functional.cross_entropy(self.network(images), labels)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main(arguments=None):
    """Train a few epochs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--workers", type=int, default=0)
    options = parser.parse_args(arguments)
    loader = DataLoader(
        RemoteImages(),
        batch_size=16,
        shuffle=True,
        num_workers=options.workers,
        persistent_workers=options.workers > 0,
    )
    trainer = Trainer(
        max_epochs=options.epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(), loader)
    return trainer


if __name__ == "__main__":
    main()
