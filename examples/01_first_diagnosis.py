"""Why is this training slow? Add PerfDoctor and read the answer.

The dataset takes 2 ms per sample, as if it read small files over a network; the model is small.
Run it: ``python examples/01_first_diagnosis.py`` (about ten seconds on a CPU).
"""

import tempfile
import time

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, Dataset

from lightning_perf import PerfDoctor


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
        loss = nn.functional.cross_entropy(self.network(images), labels)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main():
    """Train three epochs and print what to do first."""
    doctor = PerfDoctor()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            max_epochs=3,
            accelerator="cpu",
            callbacks=[doctor],
            default_root_dir=folder,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
        )
        trainer.fit(Classifier(), DataLoader(RemoteImages(), batch_size=16, shuffle=True))

    session = doctor.session
    print("\nVerdict:", session.verdict.text)
    print("DataLoader arguments to set:", session.loader_args())
    return session


if __name__ == "__main__":
    main()
