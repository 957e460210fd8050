"""Learns embeddings of handwriting patches so that patches of one writer lie close together, with a batch-hard triplet
loss on batches of a few writers with a few patches each. The batch sampler searches the labels of the whole archive
for each writer of each batch; group the patches by writer once and draw from the groups.
---
expect: PD511
fix:
  ? |2-
            self.patch_writers = np.asarray(patch_writers)
            self.writers = np.unique(self.patch_writers)
  : |2-
            self.patches_of = pd.Series(patch_writers).groupby(patch_writers).indices
            self.writers = np.array(sorted(self.patches_of))
  ? |2-
                    candidates = np.flatnonzero(self.patch_writers == writer)  # costs time
  : |2-
                    candidates = self.patches_of[writer]
half: score
"""

import lightning as L
import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

PATCH = 20


def scan_archive(writers=1500, patches=90_000, seed=0):
    """Ink patches of letters: each writer has a slant, a stroke width and a pressure of his own."""
    rng = np.random.default_rng(seed)
    names = np.array([f"{chr(97 + number % 16)}{number // 16:02d}-{number:03d}" for number in range(writers)])
    index = pd.DataFrame({"writer": rng.integers(writers, size=patches), "page": rng.integers(1, 9, size=patches)})
    style = rng.uniform([-0.6, 1.0, 0.5], [0.6, 2.5, 1.0], (writers, 3))[index["writer"]].astype(np.float32)
    rows, columns = np.mgrid[:PATCH, :PATCH].astype(np.float32)
    images = np.empty((patches, PATCH, PATCH), np.uint8)
    for start in range(0, patches, 2000):
        slant, width, pressure = (value[:, None, None] for value in style[start : start + 2000].T)
        center = PATCH / 2 + slant * (rows - PATCH / 2) + rng.normal(0, 1.5, (len(slant), 1, 1)).astype(np.float32)
        ink = pressure * np.exp(-((columns - center) ** 2) / (2 * width**2))
        images[start : start + 2000] = (255 * ink).astype(np.uint8)
    index["writer"] = names[index["writer"]]
    return torch.from_numpy(images)[:, None], index


class PatchDataset(Dataset):
    def __init__(self, images, writers):
        self.images = images
        self.labels = torch.from_numpy(pd.factorize(writers)[0])

    def __len__(self):
        return len(self.labels)

    def __getitems__(self, indices):
        chosen = torch.as_tensor(np.asarray(indices))
        return self.images[chosen].float().div_(255.0), self.labels[chosen]


class WriterBatchSampler(Sampler):
    """Batches of `writers_per_batch` writers with `patches_per_writer` patches each."""

    def __init__(self, patch_writers, writers_per_batch, patches_per_writer, batches, seed=0):
        self.patch_writers = np.asarray(patch_writers)
        self.writers = np.unique(self.patch_writers)
        self.writers_per_batch = writers_per_batch
        self.patches_per_writer = patches_per_writer
        self.batches = batches
        self.rng = np.random.default_rng(seed)

    def __len__(self):
        return self.batches

    def __iter__(self):
        for _ in range(self.batches):
            batch = []
            for writer in self.rng.choice(self.writers, self.writers_per_batch, replace=False):
                candidates = np.flatnonzero(self.patch_writers == writer)  # costs time
                batch.extend(self.rng.choice(candidates, self.patches_per_writer).tolist())
            yield batch


def batch_hard_triplet_loss(embeddings, labels, margin=0.2):
    distances = torch.cdist(embeddings, embeddings)
    same = labels[:, None] == labels[None, :]
    hardest_positive = distances.masked_fill(~same, 0.0).amax(1)
    hardest_negative = distances.masked_fill(same, float("inf")).amin(1)
    return F.relu(hardest_positive - hardest_negative + margin).mean()


class WriterEmbedding(L.LightningModule):
    def __init__(self, width=24, dimension=64, learning_rate=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(2 * width * (PATCH // 4) ** 2, dimension),
        )

    def forward(self, patches):
        return F.normalize(self.encoder(patches), dim=-1)

    def training_step(self, batch, batch_idx):
        patches, labels = batch
        loss = batch_hard_triplet_loss(self(patches), labels)
        self.log("triplet_loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.learning_rate, fused=True)


def main():
    L.seed_everything(5)
    images, index = scan_archive()
    sampler = WriterBatchSampler(index["writer"].to_numpy(dtype=str), 24, 4, batches=400)
    loader = DataLoader(PatchDataset(images, index["writer"]), batch_sampler=sampler, collate_fn=lambda batch: batch)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=2,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(WriterEmbedding(), loader)
    print(f"triplet loss {trainer.callback_metrics['triplet_loss']:.4f}")


if __name__ == "__main__":
    main()
