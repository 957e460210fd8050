"""Is a lower precision worth it here? Ask for a recommendation, then measure both.

Wide layers in float32. A CPU with bf16 matrix instructions (AMX, or AVX-512 with bf16) may run them faster in
``precision="bf16-mixed"``; on another CPU the conversions only cost time. CPU flags do not show which is the case, so
the example trains both ways and compares. Run it: ``python examples/03_mixed_precision.py`` (about ten
seconds on a CPU).
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from lightning_perf import PerfDoctor

WORTH_IT = 1.05
"""Speedups below this are within the noise of two short trainings."""


class Wide(LightningModule):
    """Almost only matrix multiplication."""

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
    """Train once and return the session."""
    data = TensorDataset(torch.rand(2560, 512))
    batches = BatchSampler(RandomSampler(data), batch_size=64, drop_last=True)
    doctor = PerfDoctor(reports=(), schedule=(20, 1, 3))  # a profiler window records operator times
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


def batch_ms(session):
    """Return milliseconds per batch in the steady state."""
    return 1e3 * session.steady.span_s / session.steady.n_steps


def main():
    """Train in float32 and in bf16-mixed, and print which is faster here."""
    before = train()
    flags = before.trainer_flags("numerics")  # include recommendations that change rounding
    print("Recommended:", flags or "nothing")
    after = train(precision="bf16-mixed")
    speedup = batch_ms(before) / batch_ms(after)
    print(f"float32: {batch_ms(before):.2f} ms per batch; bf16-mixed: {batch_ms(after):.2f} ms; speedup {speedup:.2f}x")
    print("Use bf16-mixed on this machine" if speedup >= WORTH_IT else "No speedup on this machine: keep float32")
    return before, after


if __name__ == "__main__":
    main()
