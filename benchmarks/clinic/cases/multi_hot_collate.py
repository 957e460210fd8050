"""The collate function builds multi-hot targets from lists of tags, with a membership test for every possible tag.
---
expect: PD108
half: tune
fix:
  'targets = torch.tensor(multi_hot(tags))  # costs time': |-
    targets = torch.zeros(len(tags), N_TAGS)
        targets[torch.arange(len(tags)).repeat_interleave(TAGS_PER_DOCUMENT), np.concatenate(tags)] = 1.0
"""

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

N_TAGS = 1200
TAGS_PER_DOCUMENT = 6


class Documents(Dataset):
    def __init__(self):
        random = np.random.default_rng(0)
        self.x = random.normal(size=(2560, 300)).astype(np.float32)
        self.tags = [random.choice(N_TAGS, TAGS_PER_DOCUMENT, replace=False).tolist() for _ in range(2560)]

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.tags[index]


def multi_hot(tags):
    return [[1.0 if tag in present else 0.0 for tag in range(N_TAGS)] for present in tags]  # costs time


def collate(samples):
    features, tags = zip(*samples, strict=True)
    targets = torch.tensor(multi_hot(tags))  # costs time
    return torch.from_numpy(np.stack(features)), targets


class Tagger(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(300, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, N_TAGS))

    def training_step(self, batch, batch_idx):
        x, targets = batch
        return nn.functional.binary_cross_entropy_with_logits(self.net(x), targets)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    L.seed_everything(1)
    loader = DataLoader(Documents(), batch_size=32, shuffle=True, collate_fn=collate)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Tagger(), loader)
