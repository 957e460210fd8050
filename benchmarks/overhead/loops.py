"""Compare PerfDoctor's overhead per step in a loop without a Trainer with that under a Trainer.

    python benchmarks/overhead/loops.py

The same tiny model trains under a Trainer and in a plain loop, each bare and with PerfDoctor, in turns within one
process. A figure is the thread's CPU time per step, which other programs disturb less than wall time: the first decile
of blocks of 20 steps, of which the least of all rounds counts.
"""

from __future__ import annotations

import itertools
import statistics
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn

from lightning_perf import PerfDoctor

N_STEPS, N_WARMUP, BLOCK, ROUNDS = 1500, 500, 20, 3


class Net(LightningModule):
    """A tiny model that notes the time of each block."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
        self.marks_ns: list[int] = []
        self.n = 0

    def forward(self, batch: Any) -> Any:
        return self.layers(batch)

    def training_step(self, batch: Any, _: int) -> Any:
        self.n += 1
        if self.n >= N_WARMUP and self.n % BLOCK == 0:
            self.marks_ns.append(time.thread_time_ns())
        return self(batch).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Data(torch.utils.data.IterableDataset):
    """The same batch again and again."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter([torch.ones(16, 32)] * N_STEPS)


def under_trainer(model: Net, data: Any, doctors: list[Any]) -> None:
    """Train with a Trainer."""
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    Trainer(max_epochs=1, accelerator="cpu", callbacks=doctors, enable_model_summary=False, **quiet).fit(model, data)


def in_loop(model: Net, data: Any, doctors: list[Any]) -> None:
    """Train in a plain loop."""
    optimizer = model.configure_optimizers()
    for doctor in doctors:
        doctor.watch(model, optimizer)
    for batch in doctors[0].steps(data) if doctors else data:
        optimizer.zero_grad()
        model.training_step(batch, 0).backward()
        optimizer.step()
    for doctor in doctors:
        doctor.close()


def main() -> None:
    """Print the overhead of both."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    best: dict[tuple[Any, bool], float] = {}
    for _ in range(ROUNDS):
        for train in (under_trainer, in_loop):
            for is_measured in (False, True):
                model, data = Net(), torch.utils.data.DataLoader(Data(), batch_size=None)
                train(model, data, [PerfDoctor(reports=[], probe_data=False)] if is_measured else [])
                marks = model.marks_ns
                blocks = [(after - before) / BLOCK / 1e3 for before, after in itertools.pairwise(marks)]
                key = (train.__name__, is_measured)
                best[key] = min(best.get(key, float("inf")), statistics.quantiles(blocks, n=10)[0])
    for train in (under_trainer, in_loop):
        bare, measured = (best[train.__name__, is_measured] for is_measured in (False, True))
        print(f"{train.__name__}: bare {bare:.1f} us, PerfDoctor {measured:.1f} us: +{measured - bare:.1f} us per step")


if __name__ == "__main__":
    main()
