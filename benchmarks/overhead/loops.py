"""Compare PerfDoctor's overhead per step in a loop without a Trainer with that under a Trainer.

    python benchmarks/overhead/loops.py --starts 3

The same tiny model trains under a Trainer and in a plain loop, each bare and with PerfDoctor, in turns within one
process per start. A figure is the thread's CPU time per step, which other programs disturb less than wall time: the
first quintile of single steps, of which the least of all rounds counts. Overheads of one start are compared, and the
median of the starts is printed, with their range.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import multiprocessing
import statistics
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn

from lightning_perf import PerfDoctor

N_STEPS, N_WARMUP, ROUNDS = 1000, 400, 3


class Net(LightningModule):
    """A tiny model that notes the time of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
        self.marks_ns: list[int] = []

    def forward(self, batch: Any) -> Any:
        return self.layers(batch)

    def training_step(self, batch: Any, _: int) -> Any:
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


def overheads_us(_: int) -> dict[str, float]:
    """Return the overhead per step of both in this process."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    least: dict[tuple[str, bool], float] = {}
    for _ in range(ROUNDS):
        for train in (under_trainer, in_loop):
            for is_measured in (False, True):
                model, data = Net(), torch.utils.data.DataLoader(Data(), batch_size=None)
                train(model, data, [PerfDoctor(reports=[], probe_data=False)] if is_measured else [])
                steps_us = [(after - before) / 1e3 for before, after in itertools.pairwise(model.marks_ns[N_WARMUP:])]
                key = (train.__name__, is_measured)
                least[key] = min(least.get(key, float("inf")), statistics.quantiles(steps_us, n=5)[0])
    return {name: least[name, True] - least[name, False] for name in ("under_trainer", "in_loop")}


def main() -> None:
    """Print the overhead of both, and the difference."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--starts", type=int, default=3, help="fresh processes (default: 3)")
    n_starts = parser.parse_args().starts
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        starts = pool.map(overheads_us, range(n_starts), chunksize=1)
    for start in starts:
        start["in_loop - under_trainer"] = start["in_loop"] - start["under_trainer"]
    for name in starts[0]:
        found = [start[name] for start in starts]
        print(f"{name}: {statistics.median(found):+.1f} us per step ({min(found):+.1f} to {max(found):+.1f})")


if __name__ == "__main__":
    main()
