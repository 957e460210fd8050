"""Scripts that import ``pytorch_lightning`` import PerfDoctor from ``lightning_perf.pytorch_lightning``.

The two namespaces have different base classes for callbacks. In this example, anomaly detection was left on. Run it:
``python examples/10_plain_pytorch_lightning.py`` (a few seconds on a CPU; needs ``pytorch-lightning``).
"""

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from lightning_perf.pytorch_lightning import PerfDoctor


class Model(pl.LightningModule):
    """Ten elementwise operators."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 1024), nn.Linear(1024, 1)

    def training_step(self, batch, batch_idx):
        hidden = self.first(batch[0])
        for _ in range(10):
            hidden = nn.functional.gelu(hidden)
        return self.last(hidden).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


def main():
    """Train and print the flags to set."""
    data = TensorDataset(torch.rand(3200, 16))
    batches = BatchSampler(RandomSampler(data), batch_size=64, drop_last=True)
    doctor = PerfDoctor(reports=())
    trainer = pl.Trainer(
        max_epochs=3,
        accelerator="cpu",
        detect_anomaly=True,
        callbacks=[doctor],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Model(), DataLoader(data, sampler=batches, batch_size=None))
    print("Verdict:", doctor.session.verdict.text)
    print("Trainer flags to set:", doctor.session.trainer_flags())
    return doctor.session


if __name__ == "__main__":
    main()
