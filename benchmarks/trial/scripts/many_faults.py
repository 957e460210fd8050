"""A training with several faults at once, for the ladder benchmark.

The dataset is slow, every step is logged to a slow destination, and anomaly detection is on. The flags of a ladder can
be passed: ``--trainer '{"log_every_n_steps": 50}' --loader '{"num_workers": 2}'``; its
statements too: ``--statements 'torch.set_num_threads(2)'``.
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
    """Samples from slow storage, fetched one batch at a time."""

    def __len__(self) -> int:
        """Return the number of samples."""
        return 200_000

    def __getitem__(self, indices: list[int]) -> torch.Tensor:
        time.sleep(FETCH_S)
        return torch.ones(len(indices), WIDTH)


class Stack(LightningModule):
    """Many small layers, so that anomaly detection has much to check."""

    def __init__(self) -> None:
        super().__init__()
        layers = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()) for _ in range(DEPTH)]
        self.network = torch.nn.Sequential(*layers)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        """Return the loss of one step."""
        loss = self.network(batch).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class FarAway(CSVLogger):
    """A logger with a slow connection."""

    def log_metrics(self, *args: Any, **kwargs: Any) -> None:
        """Sleep as if waiting for a server."""
        time.sleep(LOG_S)
        super().log_metrics(*args, **kwargs)


class StepTime(Callback):
    """Print the mean step time of the second half, for the check without the tool."""

    def __init__(self, n_steps: int) -> None:
        self.n_steps = n_steps
        self.started_s = 0.0

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Start the clock at half of the steps."""
        if trainer.global_step == self.n_steps // 2:
            self.started_s = time.perf_counter()

    def on_train_end(self, trainer: Trainer, *_: Any) -> None:
        """Stop the clock and print."""
        n = trainer.global_step - self.n_steps // 2
        print(f"step_s={(time.perf_counter() - self.started_s) / n:.6f}", flush=True)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--trainer", type=json.loads, default={})
    parser.add_argument("--loader", type=json.loads, default={})
    parser.add_argument("--statements", default="")
    arguments = parser.parse_args()
    pasted = {"torch": torch, "model": Stack()}
    exec(arguments.statements, pasted)  # statements that a trial recommends
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
