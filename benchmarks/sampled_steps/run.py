"""Measure what a sampled step costs, and all of them in a fit. On a CPU, in one run.

A callback before PerfDoctor times every step of a fit from one ``on_train_batch_start`` to the next, and records which
tracer listens to the phases of the step. Times are CPU times of the training thread, the only thread with which
torch computes here, so other programs do not count. The cost of a sampled step is its time divided by the median of the
fit's plain steps. Fits repeat, each with a new model; figures are medians over them. The first fit of the process,
which includes imports, is reported separately.

Run: ``python benchmarks/sampled_steps/run.py [--fits N] [--steps N] [--write]``.
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_perf import PerfDoctor
from lightning_perf.probes.settings.machine import read_machine

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks" / "sampled-steps.md"
PLAIN, WARMUP = "plain", 4  # untimed plain steps at the beginning
KINDS = {
    "ArithmeticCounter": "arithmetic counted",
    "ModuleTimes": "modules timed",
    "OperatorTracer": "operators seen",
    "MemoryProbe": "memory read",
}


def _tiny() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(4, 8)


def _convolutions() -> tuple[nn.Module, torch.Tensor]:
    layers: list[nn.Module] = []
    for i in range(8):
        layers += [nn.Conv2d(3 if i == 0 else 32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()]
    return nn.Sequential(*layers), torch.randn(8, 3, 32, 32)


def _transformer() -> tuple[nn.Module, torch.Tensor]:
    layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.1, batch_first=True)
    return nn.TransformerEncoder(layer, 6, enable_nested_tensor=False), torch.randn(8, 64, 128)


MODELS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "two linear layers of 8": _tiny,
    "8 convolutions with batch norm, 8 x 32²": _convolutions,
    "transformer, 6 layers of 128, 8 x 64 tokens": _transformer,
}


class Model(LightningModule):
    """Records in each step which tracer observes it."""

    def __init__(self, body: nn.Module, doctor: PerfDoctor | None) -> None:
        super().__init__()
        self.body = body
        self.kinds: list[str] = []
        self._doctor = [doctor]  # a list, so that nn.Module does not register it

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        self.kinds.append(_kind(self._doctor[0]))
        return self.body(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-6)


def _kind(doctor: Any) -> str:
    loop = doctor._probes.loop
    listener = loop.timeline.phase_listener if loop is not None else None
    name = type(getattr(listener, "_open", None) or listener).__name__
    return PLAIN if listener is None else KINDS.get(name, name)


class Stopwatch(Callback):
    """Records the thread's CPU time at the start of each step."""

    def __init__(self) -> None:
        self.began_s: list[float] = []

    def on_train_batch_start(self, *args: Any) -> None:
        self.began_s.append(time.thread_time())

    def on_train_end(self, *args: Any) -> None:
        self.began_s.append(time.thread_time())


class Fit(NamedTuple):
    """One fit: seconds of each step after the first ones, by tracer, and of the whole loop."""

    steps: dict[str, list[float]]
    loop_s: float

    @property
    def plain_s(self) -> float:
        return statistics.median(self.steps[PLAIN])

    def extra_s(self, kind: str) -> float:
        """Return the seconds that steps of this kind took beyond as many unsampled steps."""
        return sum(self.steps.get(kind, ())) - len(self.steps.get(kind, ())) * self.plain_s


def fit(name: str, n_steps: int, folder: str) -> Fit:
    """Train and time each step."""
    torch.manual_seed(0)
    body, sample = MODELS[name]()
    doctor, watch = PerfDoctor(reports=(), schedule=None, ceilings=False, out_dir=folder), Stopwatch()
    model = Model(body, doctor)
    data = DataLoader(TensorDataset(sample.repeat(n_steps, *[1] * (sample.dim() - 1))), len(sample))
    trainer = Trainer(accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False,
                      enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
                      callbacks=[watch, doctor])  # fmt: skip
    trainer.fit(model, data)
    steps: dict[str, list[float]] = {}
    for i, kind in enumerate(model.kinds):
        if i >= WARMUP or kind != PLAIN:
            steps.setdefault(kind, []).append(watch.began_s[i + 1] - watch.began_s[i])
    return Fit(steps, watch.began_s[-1] - watch.began_s[0])


def rows_of(name: str, fits: list[Fit], n_steps: int) -> list[str]:
    """Return the table rows for one model."""
    plain_s = statistics.median(each.plain_s for each in fits)
    lines = [f"| {name} | {PLAIN} | | {plain_s * 1e3:.2f} ms | | |"]
    total_s = 0.0
    for kind in KINDS.values():
        found = [each for each in fits if kind in each.steps]
        if not found:
            continue
        n = statistics.median(len(each.steps[kind]) for each in found)
        ratio = statistics.median(statistics.fmean(each.steps[kind]) / each.plain_s for each in found)
        extra_s = statistics.median(each.extra_s(kind) for each in found)
        total_s += extra_s
        lines.append(f"| | {kind} | {n:g} | {ratio * plain_s * 1e3:.2f} ms | {ratio:.1f} | {extra_s * 1e3:+.1f} ms |")
    loop_s = statistics.median(each.loop_s for each in fits)
    lines.append(
        f"| | all, in a fit of {n_steps:,} steps | | {loop_s:.2f} s | "
        f"| {total_s * 1e3:+.1f} ms, {total_s / loop_s:.1%} |"
    )
    return lines


def page(first: dict[str, float], results: dict[str, list[Fit]], arguments: argparse.Namespace) -> str:
    """The page of the documentation."""
    from lightning_perf.probes.sampled_steps.probe import COUNTED_STEP, MAX_SHARE, ROUNDS

    n_fits = len(next(iter(results.values())))
    lines = [
        "# What a sampled step costs",
        "",
        "Written by `benchmarks/sampled_steps/run.py --write`; the method is described at the top of that script. A",
        "sampled step counts in no statistic: it only takes longer. Times are CPU times of the training thread.",
        "",
        f"{read_machine().cpu_model or platform.machine()}, 1 thread, torch {torch.__version__}; "
        f"medians over {n_fits} fits of {arguments.steps:,} steps, without the first of the process; load "
        f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores at the end.",
        "",
        f"Schedule: one step after {COUNTED_STEP} counts operations. After "
        + ", ".join(f"{n:,}" for n in ROUNDS)
        + " steps, four steps time modules and trace operators (two of the four only while sampling has cost less than "
        f"{MAX_SHARE:.0%} of the time), so never more than 12 of these. Memory is read in single steps, ever more "
        "rarely.",
        "",
        "| model | sampled | steps | time per step | ratio | more in a fit |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for name, fits in results.items():
        lines += rows_of(name, fits, arguments.steps)
    lines += [
        "",
        "In the first fit of a process all sampled steps together took, with imports: "
        + "; ".join(f"{seconds * 1e3:.0f} ms ({name})" for name, seconds in first.items())
        + ".",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fits", type=int, default=7)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name} of the documentation")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "lightning_perf"):
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.set_num_threads(1)
    results: dict[str, list[Fit]] = {}
    first: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in MODELS:
            found = [fit(name, arguments.steps, folder) for _ in range(arguments.fits + (not first))]
            if not first:
                once = found.pop(0)
                first[name] = sum(once.extra_s(kind) for kind in KINDS.values())
            results[name] = found
    text = page(first, results, arguments)
    print(text)
    if arguments.write:
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
