"""Measure whether a profiler window slows down the steps before or after it.

Fits of a small model on the CPU alternate between one window in the middle and no window. The script compares the
median step time well before and well after the window with the same steps of fits without one. The model times its
own steps.

Run: ``python benchmarks/windows/run.py [--rounds N] [--write]`` (about a minute).
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
import warnings
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

from lightning_perf import PerfDoctor

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks" / "windows.md"
N_STEPS, OPENS_AT, MARGIN = 900, 440, 20
WARMUP, ACTIVE = 2, 3


class Timed(LightningModule):
    """Take about a millisecond per step and record when each step begins."""

    def __init__(self) -> None:
        super().__init__()
        self.network = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
        self.starts: list[float] = []

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        """Return the loss of one step."""
        self.starts.append(time.perf_counter())
        return self.network(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.01)


def steps_us(has_window: bool) -> tuple[float, float]:
    """Return the median microseconds of steps before and after the window's position."""
    with tempfile.TemporaryDirectory() as folder:
        return _steps_us(has_window, folder)


def _steps_us(has_window: bool, folder: str) -> tuple[float, float]:
    schedule = (OPENS_AT, WARMUP, ACTIVE, 1) if has_window else None
    doctor = PerfDoctor(schedule=schedule, reports=(), memory=False, device_stats=False, out_dir=folder)
    model = Timed()
    trainer = Trainer(
        max_epochs=1,
        accelerator="cpu",
        callbacks=[doctor],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(TensorDataset(torch.randn(N_STEPS * 8, 64)), batch_size=8))
    assert doctor.session is not None
    assert [window.status for window in doctor.session.windows] == ["recorded"] * has_window
    taken = [1e6 * (after - before) for before, after in zip(model.starts, model.starts[1:], strict=False)]
    before = taken[100 : OPENS_AT - MARGIN]
    after = taken[OPENS_AT + WARMUP + ACTIVE + MARGIN :]
    return statistics.median(before), statistics.median(after)


def main() -> None:
    """Run the rounds; print or write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    rows: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for number in range(arguments.rounds):
        for has_window in (True, False) if number % 2 else (False, True):
            rows[has_window].append(steps_us(has_window))
    medians = {has: [statistics.median(column) for column in zip(*rows[has], strict=True)] for has in rows}
    ratios = [
        statistics.median(w[part] / p[part] for w, p in zip(rows[True], rows[False], strict=True)) for part in (0, 1)
    ]
    page = f"""# Effect of a profiler window on other steps

Written by `benchmarks/windows/run.py`: {arguments.rounds} alternating pairs of fits of {N_STEPS} steps on the CPU,
with one thread; one window of {WARMUP} + {ACTIVE} steps at step {OPENS_AT}. Figures are medians; the ratio is the
median over pairs. The machine was shared, so compare ratios only.

| steps | with window, µs | without, µs | ratio |
|:--|--:|--:|--:|
| before the window | {medians[True][0]:.0f} | {medians[False][0]:.0f} | {ratios[0]:.3f} |
| after the window | {medians[True][1]:.0f} | {medians[False][1]:.0f} | {ratios[1]:.3f} |
"""
    print(page)
    if arguments.write:
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
