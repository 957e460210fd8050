"""Is torch.compile worth it? A chain of elementwise operators, eager and compiled.

``torch.compile`` fuses operators that would otherwise each read and write memory. On a CPU it needs a C++ compiler;
without one, the example prints a message. Run it: ``python examples/05_compile.py`` (half a minute on a CPU, mostly
compiling).
"""

import shutil

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from lightning_perf import PerfDoctor


class Chain(LightningModule):
    """Thirty elementwise operators between two small layers."""

    def __init__(self, is_compiled=False):
        super().__init__()
        self.first, self.last = nn.Linear(32, 1024), nn.Linear(1024, 1)
        self.middle = torch.compile(self.chain) if is_compiled else self.chain

    def chain(self, x):
        for _ in range(10):
            x = torch.sigmoid(x) * 1.01 + 0.1
        return x

    def training_step(self, batch, batch_idx):
        return self.last(self.middle(self.first(batch[0]))).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


def train(is_compiled):
    """Train once and return the session; statistics leave out steps that compile."""
    data = TensorDataset(torch.rand(64 * 60, 32))
    batches = BatchSampler(RandomSampler(data), batch_size=64, drop_last=True)
    doctor = PerfDoctor(reports=())
    trainer = Trainer(
        max_epochs=3,
        accelerator="cpu",
        callbacks=[doctor],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Chain(is_compiled), DataLoader(data, sampler=batches, batch_size=None))
    return doctor.session


def main():
    """Train twice and print both speeds."""
    before = train(is_compiled=False)
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        print("No C++ compiler found: torch.compile needs one on a CPU.")
        return before, None
    after = train(is_compiled=True)
    old_ms, new_ms = (1e3 * session.steady.span_s / session.steady.n_steps for session in (before, after))
    print(f"A batch took {old_ms:.1f} ms, now {new_ms:.1f} ms: {old_ms / new_ms:.1f}x")
    print(f"Compiling took {after.compiler.compile_s:.1f} s, once")
    return before, after


if __name__ == "__main__":
    main()
