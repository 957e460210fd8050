"""Is a lower precision worth it here? Ask, then measure.

Wide layers in float32. On a CPU with 16-bit matrix products (AMX, or AVX-512 with bf16) the diagnosis prescribes
``precision="bf16-mixed"``; on another it does not, as it would cost time. Run it: ``python
examples/03_mixed_precision.py`` (about ten seconds on a CPU).
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from lightning_perf import PerfDoctor


class Wide(LightningModule):
    """Almost only matrix products."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1)
        )

    def training_step(self, batch, batch_idx):
        return self.layers(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


def train(**flags):
    """The session of one training."""
    data = TensorDataset(torch.rand(2560, 512))
    batches = BatchSampler(RandomSampler(data), batch_size=64, drop_last=True)
    doctor = PerfDoctor(reports=(), schedule=(20, 1, 3))  # a profiler window tells what the operators cost
    trainer = Trainer(
        max_epochs=3,
        accelerator="cpu",
        callbacks=[doctor],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **flags,
    )
    trainer.fit(Wide(), DataLoader(data, sampler=batches, batch_size=None))
    return doctor.session


def main():
    """Trains as it is and, where that is prescribed, in the lower precision."""
    before = train()
    flags = before.trainer_flags("numerics")  # changes of rounding are allowed
    print("Prescribed:", flags or "nothing")
    if "precision" not in flags:
        return before, None
    after = train(precision=flags["precision"])
    old_ms, new_ms = (1e3 * session.steady.span_s / session.steady.n_steps for session in (before, after))
    print(f"A batch took {old_ms:.1f} ms, now {new_ms:.1f} ms: {old_ms / new_ms:.1f}x")
    return before, after


if __name__ == "__main__":
    main()
