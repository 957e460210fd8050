"""A callback writes histograms of all weights and gradients to TensorBoard after each step.
---
expect:
- PD504
- PD505
half: score
fix:
  'callbacks=[WeightHistograms(every=1)]': 'callbacks=[WeightHistograms(every=100)]'
"""

import tempfile

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.loggers import TensorBoardLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

N_CHARS = 64
LENGTH = 48


def make_text(n):
    generator = torch.Generator().manual_seed(0)
    step = torch.randint(1, 6, (n, 1), generator=generator)
    start = torch.randint(0, N_CHARS, (n, 1), generator=generator)
    noise = torch.rand(n, LENGTH + 1, generator=generator) < 0.1
    return (start + step * torch.arange(LENGTH + 1) + noise) % N_CHARS


class WeightHistograms(L.Callback):
    def __init__(self, every):
        self.every = every

    def on_before_zero_grad(self, trainer, pl_module, optimizer):
        if trainer.global_step % self.every:
            return
        writer = trainer.logger.experiment
        for name, parameter in pl_module.named_parameters():
            writer.add_histogram(f"weights/{name}", parameter, trainer.global_step)  # costs time
            if parameter.grad is not None:
                writer.add_histogram(f"gradients/{name}", parameter.grad, trainer.global_step)  # costs time


class CharModel(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(N_CHARS, 48)
        self.gru = nn.GRU(48, 96, batch_first=True)
        self.head = nn.Linear(96, N_CHARS)

    def training_step(self, batch, batch_idx):
        (text,) = batch
        x, _ = self.gru(self.embedding(text[:, :-1]))
        loss = F.cross_entropy(self.head(x).flatten(0, 1), text[:, 1:].flatten())
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3, fused=True)


L.seed_everything(1)
loader = DataLoader(TensorDataset(make_text(3_200)), batch_size=32, shuffle=True)
with tempfile.TemporaryDirectory() as folder:
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=2,
        logger=TensorBoardLogger(folder),
        callbacks=[WeightHistograms(every=1)],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(CharModel(), loader)
