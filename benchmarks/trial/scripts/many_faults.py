"""A training with several things wrong at once: the script whose ladder the benchmark climbs.

Batches are waited for, every step is logged to a place that answers slowly, and anomaly detection was left on. Flags of
a ladder can be pasted: ``--trainer '{"log_every_n_steps": 50}' --loader '{"num_workers": 2}'``, and so can its
statements: ``--statements 'torch.set_num_threads(2)'``.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

BATCH, WIDTH, DEPTH, FETCH_S, LOG_S = 32, 128, 24, 0.014, 0.016


class Waits(Dataset[torch.Tensor]):
    """Samples from a store that answers slowly, fetched a batch at a time."""

    def __len__(self) -> int:
        """Samples."""
        return 200_000

    def __getitem__(self, indices: list[int]) -> torch.Tensor:
        time.sleep(FETCH_S)
        return torch.ones(len(indices), WIDTH)


class Stack(LightningModule):
    """Many small layers: autograd has much to watch over."""

    def __init__(self) -> None:
        super().__init__()
        layers = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()) for _ in range(DEPTH)]
        self.network = torch.nn.Sequential(*layers)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        """One step."""
        loss = self.network(batch).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class FarAway(CSVLogger):
    """A logger behind a slow connection."""

    def log_metrics(self, *args: Any, **kwargs: Any) -> None:
        """Waits for an answer."""
        time.sleep(LOG_S)
        super().log_metrics(*args, **kwargs)


class StepTime(Callback):
    """Prints the mean step of the second half, for the check outside the tool."""

    def __init__(self, n_steps: int) -> None:
        self.n_steps = n_steps
        self.started_s = 0.0

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Starts the clock half way."""
        if trainer.global_step == self.n_steps // 2:
            self.started_s = time.perf_counter()

    def on_train_end(self, trainer: Trainer, *_: Any) -> None:
        """Stops it."""
        n = trainer.global_step - self.n_steps // 2
        print(f"step_s={(time.perf_counter() - self.started_s) / n:.6f}", flush=True)


def main() -> None:
    """Trains."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--trainer", type=json.loads, default={})
    parser.add_argument("--loader", type=json.loads, default={})
    parser.add_argument("--statements", default="")
    arguments = parser.parse_args()
    pasted = {"torch": torch, "model": Stack()}
    exec(arguments.statements, pasted)  # what a trial wrote for its user to paste
    data = Waits()
    sampler = BatchSampler(RandomSampler(data), BATCH, drop_last=True)
    flags: dict[str, Any] = {"log_every_n_steps": 1, "detect_anomaly": True, **arguments.trainer}
    trainer = Trainer(
        max_steps=arguments.steps,
        max_epochs=-1,
        accelerator="cpu",
        logger=FarAway("logs"),
        callbacks=[StepTime(arguments.steps)],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **flags,
    )
    trainer.fit(pasted["model"], DataLoader(data, sampler=sampler, batch_size=None, **arguments.loader))


if __name__ == "__main__":
    main()
