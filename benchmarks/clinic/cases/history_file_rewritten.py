"""An own logger that writes the whole history as indented JSON each time metrics arrive, in every step.
---
expect: PD505
also: {PD502: "self.log of 16 values takes as long in each step"}
half: tune
fix:
  'self.file = None': 'self.file = path.open("w")'
  'self.path.write_text(json.dumps(self.history, indent=2))  # costs time': |-
    print(json.dumps(self.history[-1]), file=self.file, flush=True)
"""

import json
import tempfile
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.loggers.logger import Logger
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class HistoryFile(Logger):
    def __init__(self, path):
        super().__init__()
        self.path = path
        self.file = None
        self.history = []

    @property
    def name(self):
        return "history"

    @property
    def version(self):
        return 0

    def log_hyperparams(self, params, *args, **kwargs):
        pass

    def log_metrics(self, metrics, step=None):
        self.history.append({"step": step, **metrics})
        self.path.write_text(json.dumps(self.history, indent=2))  # costs time


class MultiTask(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU())
        self.heads = nn.Linear(512, 16)

    def training_step(self, batch, batch_idx):
        x, y = batch
        losses = (self.heads(self.trunk(x)) - y).square().mean(0)
        self.log_dict({f"train/loss_{task}": loss for task, loss in enumerate(losses)})
        return losses.sum()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    L.seed_everything(1)
    data = TensorDataset(torch.randn(4096, 128), torch.randn(4096, 16))
    loader = DataLoader(data, sampler=BatchSampler(RandomSampler(data), 32, drop_last=True), batch_size=None)
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            accelerator="cpu",
            max_epochs=2,
            logger=HistoryFile(Path(folder) / "history.json"),
            log_every_n_steps=1,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(MultiTask(), loader)
