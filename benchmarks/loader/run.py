"""Compare step times predicted by the loader probe with measured ones, for a CPU-bound and an I/O-bound dataset.

In each round, a fit of one epoch without workers is diagnosed with ``PerfDoctor(probe_data=True)``, which probes the
loader at the end. Then the same fit runs without PerfDoctor: unchanged, with the recommended number of workers, and
with as many workers as cores. The script compares the mean step time of each with the prediction.

Run: ``python benchmarks/loader/run.py [--rounds N] [--threads N] [--write]`` (three minutes, on an otherwise idle
machine). ``--write`` replaces the page's section for that number of threads.
"""

from __future__ import annotations

import argparse
import logging
import os
import resource
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, Dataset

from lightning_perf import PerfDoctor
from lightning_perf.rules.loader_curve import probed_loader_of
from lightning_perf.rules.worker_bounds import WorkerStep

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks" / "loader.md"
N_BATCHES, BATCH_SIZE, WARMUP = 80, 16, 16
GOAL = 0.15


class Computing(Dataset[torch.Tensor]):
    """Compute for about a millisecond per sample in Python."""

    def __len__(self) -> int:
        return N_BATCHES * BATCH_SIZE

    def __getitem__(self, index: int) -> torch.Tensor:
        total = 0.0
        for step in range(20_000):
            total += step * 0.5
        return torch.full((256,), total * 1e-9)


class Waiting(Computing):
    """Sleep two milliseconds per sample, as if reading from storage."""

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.002)
        return torch.full((256,), index * 1e-4)


class Model(LightningModule):
    """Take about ten milliseconds per step and record when each step begins."""

    def __init__(self) -> None:
        super().__init__()
        layers = [layer for _ in range(4) for layer in (torch.nn.Linear(1024, 1024), torch.nn.ReLU())]
        self.network = torch.nn.Sequential(torch.nn.Linear(256, 1024), *layers)
        self.starts: list[float] = []

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        """Return the loss of one step."""
        self.starts.append(time.perf_counter())
        return self.network(batch.repeat(4, 1)).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=1e-6)


class Row(NamedTuple):
    """One setting of one dataset, over all rounds."""

    dataset: str
    setting: str
    predicted: list[WorkerStep]
    measured_s: list[float]
    others: list[float]

    @property
    def off(self) -> float:
        """Return the median over rounds of predicted ÷ measured, minus one."""
        pairs = zip(self.predicted, self.measured_s, strict=True)
        return statistics.median(option.step_s / step_s for option, step_s in pairs) - 1


def step_s(dataset: Dataset[torch.Tensor], num_workers: int, prefetch_factor: int | None, doctor: Any = None) -> float:
    """Return the mean seconds per step of a fit, without the first steps."""
    torch.manual_seed(0)
    loader = DataLoader(
        dataset,
        batch_size=BATCH_SIZE,
        shuffle=True,
        num_workers=num_workers,
        prefetch_factor=prefetch_factor,
        persistent_workers=num_workers > 0,
    )
    model = Model()
    with tempfile.TemporaryDirectory() as folder:
        Trainer(
            max_epochs=1,
            accelerator="cpu",
            callbacks=[] if doctor is None else [doctor],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        ).fit(model, loader)
    return (model.starts[-1] - model.starts[WARMUP]) / (len(model.starts) - 1 - WARMUP)


class Others:
    """Measure how many cores other programs use: system CPU time minus that of this process and its workers."""

    def __init__(self) -> None:
        self._begin = self._now()

    def cores(self) -> float:
        """Return the mean since construction; the workers must have ended."""
        wall_s, busy_s, own_s = (now - begin for now, begin in zip(self._now(), self._begin, strict=True))
        return max(0.0, (busy_s - own_s) / wall_s)

    @staticmethod
    def _now() -> tuple[float, float, float]:
        times = psutil.cpu_times()
        usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        idle_s = times.idle + times.iowait
        return time.perf_counter(), sum(times[:8]) - idle_s, sum(usage.ru_utime + usage.ru_stime for usage in usages)


def predictions(dataset: Dataset[torch.Tensor]) -> dict[str, WorkerStep]:
    """Return the predictions of a diagnosed fit without workers, by setting."""
    with tempfile.TemporaryDirectory() as folder:
        doctor = PerfDoctor(probe_data=True, reports=(), out_dir=folder)
        step_s(dataset, 0, None, doctor)
    assert doctor.session is not None
    plan = probed_loader_of(doctor.session).plan
    assert plan.now is not None
    assert plan.chosen is not None
    found = {"unchanged": plan.now, "recommended": plan.chosen}
    for step in plan.steps:
        if step.num_workers == len(os.sched_getaffinity(0)):
            found["workers = cores"] = step
    return found


def measure(name: str, dataset: Dataset[torch.Tensor], rounds: int) -> list[Row]:
    """Return the predicted and measured step times of one dataset."""
    rows: dict[str, Row] = {}
    for _ in range(rounds):
        for setting, option in predictions(dataset).items():
            row = rows.setdefault(setting, Row(name, setting, [], [], []))
            row.predicted.append(option)
            others = Others()
            row.measured_s.append(step_s(dataset, option.num_workers, 2 if option.num_workers else None))
            row.others.append(others.cores())
    return list(rows.values())


HEADER = f"""# Step times predicted by the loader probe

Written by `benchmarks/loader/run.py`. In each round, a fit without workers is diagnosed with
`PerfDoctor(probe_data=True)`, followed by fits of {N_BATCHES} steps without PerfDoctor, one per setting. Figures are
medians over rounds of the mean step time in milliseconds, with the median of the predicted interval; *error* is the
median of predicted ÷ measured, minus 1.
"""


def section(rows: list[Row], rounds: int) -> str:
    """Return the table for the current number of threads."""
    n_threads = torch.get_num_threads()
    others = [cores for row in rows for cores in row.others]
    lines = [
        f"## torch with {n_threads} thread{'' if n_threads == 1 else 's'}",
        "",
        f"{len(os.sched_getaffinity(0))} cores, {rounds} rounds. Other programs used {statistics.median(others):.1f} "
        f"cores during the fits (median; at most {max(others):.1f}).",
        "",
        "| dataset | setting | workers | predicted | interval | measured | fastest to slowest | error |",
        "|:--|:--|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        workers = sorted({option.num_workers for option in row.predicted})
        predicted, low, high = (
            1e3 * statistics.median(getattr(option, name) for option in row.predicted)
            for name in ("step_s", "low_s", "high_s")
        )
        lines.append(
            f"| {row.dataset} | {row.setting} | {', '.join(map(str, workers))} | {predicted:.1f} | "
            f"{low:.1f} to {high:.1f} | "
            f"{1e3 * statistics.median(row.measured_s):.1f} | "
            f"{1e3 * min(row.measured_s):.1f} to {1e3 * max(row.measured_s):.1f} | {100 * row.off:+.0f} % |"
        )
    return "\n".join(lines) + "\n"


def with_section(page: str, text: str) -> str:
    """Return the page with this section replacing the one with the same heading; other sections stay."""
    heading = text.split("\n", 1)[0]
    sections = [f"## {part}".strip() for part in page.split("\n## ")[1:]]
    kept = [each for each in sections if each.split("\n", 1)[0] != heading]
    return HEADER + "".join(f"\n{each}\n" for each in sorted([*kept, text.strip()]))


def main() -> None:
    """Measure, print and optionally write the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    rows = []
    for name, dataset in (("computes", Computing()), ("waits", Waiting())):
        rows += measure(name, dataset, arguments.rounds)
    text = section(rows, arguments.rounds)
    print(text)
    if arguments.write:
        PAGE.write_text(with_section(PAGE.read_text(encoding="utf-8"), text), encoding="utf-8")
    missed = [row for row in rows if row.setting == "recommended" and abs(row.off) > GOAL]
    for row in missed:
        print(f"{row.dataset}: error {100 * row.off:+.0f} %, target {100 * GOAL:.0f} %")


if __name__ == "__main__":
    main()
