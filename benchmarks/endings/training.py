"""A long training with a planted fault, which a signal ends; started by ``run.py``.

It leaves ``events.jsonl``: when training began, and the in-epoch diagnoses with their durations.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader, Dataset

from lightning_perf import PerfDoctor
from lightning_perf.run import DoctorRun

EVENTS = Path("events.jsonl")


def note(**event: Any) -> None:
    """Append one event; what was noted survives a kill."""
    with EVENTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"at_s": time.time(), **event}) + "\n")


class Samples(Dataset[torch.Tensor]):
    """Samples that sleep if they are the fault."""

    def __init__(self, sleep_s: float) -> None:
        self.sleep_s = sleep_s

    def __len__(self) -> int:
        return 2_000_000  # a DistributedSampler lists them all

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.sleep_s:
            time.sleep(self.sleep_s)
        return torch.ones(64)


class Model(LightningModule):
    """A small model whose schedule is slow if it is the fault."""

    def __init__(self, has_slow_schedule: bool) -> None:
        super().__init__()
        self.network = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
        self.has_slow_schedule = has_slow_schedule

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        """Return the loss of one step."""
        if batch_idx == 0:
            note(name="begins")
        return self.network(batch).square().mean()

    def configure_optimizers(self) -> Any:
        """Return plain SGD, with a slow schedule if that is the fault."""
        optimizer = torch.optim.SGD(self.parameters(), lr=1e-6)
        if not self.has_slow_schedule:
            return optimizer
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0 + 0.0 * sum(x * x for x in range(50_000)))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class SlowCallback(Callback):
    """The fault: a callback that computes at each step."""

    def on_train_batch_end(self, *_: Any) -> None:
        """Add up a series."""
        sum(x * x for x in range(50_000))


def main() -> None:
    """Train until a signal ends it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", choices=("samples", "schedule", "callback", "none"), default="samples")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--without", action="store_true", help="train without PerfDoctor")
    given = parser.parse_args()
    torch.set_num_threads(1)
    doctor = PerfDoctor(out_dir="out", reports=["console", "json", "html"])
    step_ended = DoctorRun.step_ended

    def timed(run: DoctorRun, module: Any) -> None:
        if run.schedule is None or not run.schedule.is_due:
            step_ended(run, module)
            return
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        step_ended(run, module)
        took = {"wall_s": time.perf_counter() - wall_s, "cpu_s": time.process_time() - cpu_s}
        note(name="diagnosis", n_steps=module.trainer.global_step, **took)

    DoctorRun.step_ended = timed  # type: ignore[method-assign]
    callbacks: list[Callback] = [] if given.without else [doctor]
    trainer = Trainer(
        max_steps=10**8,
        accelerator="cpu",
        devices=given.ranks,
        strategy="ddp" if given.ranks > 1 else "auto",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[*callbacks, *([SlowCallback()] if given.fault == "callback" else [])],
    )
    sleep_s = 0.01 if given.fault == "samples" else 0.0
    trainer.fit(Model(given.fault == "schedule"), DataLoader(Samples(sleep_s), batch_size=1, num_workers=0))


if __name__ == "__main__":
    main()
