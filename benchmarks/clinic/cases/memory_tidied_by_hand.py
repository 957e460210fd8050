"""Calls gc.collect() after every tenth backward pass "to free memory", with the manifest of all clips on the heap.
---
expect: PD508
half: score
fix:
  'gc.collect()  # costs time': 'pass'
"""

import gc

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

N_CLIPS = 3200


class Clips(Dataset):
    def __init__(self):
        self.sound = np.random.default_rng(0).normal(size=(64, 1, 1024)).astype(np.float32)
        self.manifest = [
            {"clip": index % 64, "speaker": {"id": index % 10, "tags": ["read"]}, "span": [0, 1024]}
            for index in range(N_CLIPS)
        ]

    def __len__(self):
        return N_CLIPS

    def __getitem__(self, index):
        entry = self.manifest[index]
        return self.sound[entry["clip"]], entry["speaker"]["id"]


class Speaker(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(1, 24, 9, stride=4),
            nn.ReLU(),
            nn.Conv1d(24, 48, 9, stride=4),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
            nn.Linear(48, 10),
        )

    def training_step(self, batch, batch_idx):
        sound, speaker = batch
        return nn.functional.cross_entropy(self.net(sound), speaker)

    def on_after_backward(self):
        if self.global_step % 10 == 0:
            gc.collect()  # costs time

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    L.seed_everything(1)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Speaker(), DataLoader(Clips(), batch_size=16, shuffle=True))
