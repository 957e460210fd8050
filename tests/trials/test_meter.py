"""Counts and times inside a training."""

from __future__ import annotations

import math
import multiprocessing
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

from lightning_perf.trials import meter
from lightning_perf.trials.inject_callbacks import callback_class
from lightning_perf.trials.job import Job, Result
from lightning_perf.trials.meter import MeterHooks, _epochs_between_validations, _peak_host_bytes, _planned_steps

HOARD_BYTES = 2**26


class Net(LightningModule):
    """A layer that is trained or not."""

    def __init__(self, has_optimizer: bool = True) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.has_optimizer = has_optimizer

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01) if self.has_optimizer else None


def metered(folder: Path, net: Net, steps: int, hooks: type = MeterHooks, **arguments: Any) -> Result:
    """Return the result of a short training."""
    results: list[Result] = []
    callback = callback_class(hooks, "lightning.pytorch")(
        Job(mode="trial", folder=str(folder), steps=steps), results.append
    )
    quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    trainer = Trainer(
        accelerator="cpu", max_epochs=3, enable_checkpointing=False, callbacks=[callback], **quiet, **arguments
    )
    trainer.fit(net, DataLoader(TensorDataset(torch.ones(80, 4)), batch_size=2))
    (result,) = results
    return result


def test_batches_are_the_steps_when_there_is_no_optimizer(tmp_path: Path) -> None:
    result = metered(tmp_path, Net(has_optimizer=False), steps=30)
    assert (result.n_steps, result.n_batches) == (30, 30)
    assert not result.is_whole


@pytest.mark.parametrize(("steps", "expected"), [(40, None), (75, 40)])
def test_steps_of_an_epoch_are_known_when_the_next_one_began(tmp_path: Path, steps: int, expected: float) -> None:
    assert metered(tmp_path, Net(), steps).epoch_steps == expected


def test_steps_are_those_of_the_optimizer_when_gradients_are_accumulated(tmp_path: Path) -> None:
    result = metered(tmp_path, Net(), steps=30, accumulate_grad_batches=2)
    assert (result.n_steps, result.n_batches, result.batches_per_step) == (30, 60, 2)
    assert result.samples_per_step == 4
    assert result.planned_steps == 60


def test_long_steps_of_an_asynchronous_device_are_timed_after_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Asynchronous(MeterHooks):
        """Measures as on an accelerator."""

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            super().on_train_start(trainer, pl_module)
            self._is_async = True

    class Long(Net):
        """Takes half a second of the clock per step."""

        def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
            now_ns[0] += 500_000_000
            return super().training_step(batch, batch_idx)

    now_ns = [0]
    monkeypatch.setattr(meter, "time", SimpleNamespace(perf_counter_ns=lambda: now_ns[0]))
    result = metered(tmp_path, Long(), steps=16, hooks=Asynchronous)
    assert set(result.block_means_s) == {0.5}


def test_planned_steps_are_unknown_without_a_limit_and_when_lightning_cannot_know() -> None:
    for one in (SimpleNamespace(estimated_stepping_batches=n) for n in (math.inf, -1)):
        assert _planned_steps(one) is None
    assert _planned_steps(SimpleNamespace()) is None


def test_compile_time_is_that_of_this_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    utils = SimpleNamespace(calculate_time_spent=lambda: {"total_wall_time": spent[0]})
    spent = [3.0]
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)

    class Compiles(Net):
        def on_train_start(self) -> None:
            spent[0] += 2.5

    assert metered(tmp_path, Compiles(), steps=30).compile_s == 2.5
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils")
    assert metered(tmp_path, Net(), steps=30).compile_s == 0.0


def hoard(is_there: Any, may_end: Any) -> None:
    kept = b"x" * HOARD_BYTES
    is_there.set()
    may_end.wait(60)
    del kept


def test_peak_memory_includes_workers() -> None:
    context = multiprocessing.get_context("fork")
    is_there, may_end = context.Event(), context.Event()
    worker = context.Process(target=hoard, args=(is_there, may_end), daemon=True)
    before = _peak_host_bytes()
    worker.start()
    assert is_there.wait(60)
    during = _peak_host_bytes()
    may_end.set()
    worker.join()
    assert during - before > 0.9 * HOARD_BYTES
    assert _peak_host_bytes() - before < 0.5 * HOARD_BYTES


@pytest.mark.parametrize(
    ("every", "interval", "n_batches", "epochs"),
    [(3, 1.0, 8, 3), (None, 4, 8, 1), (None, 12, 8, 3), (None, 16, 8, 2), (None, 4, float("inf"), 1)],
)
def test_whole_epochs_are_timed_from_one_validation_to_the_next(
    every: int | None, interval: float, n_batches: float, epochs: int
) -> None:
    trainer = SimpleNamespace(
        check_val_every_n_epoch=every, val_check_interval=interval, num_training_batches=n_batches
    )
    assert _epochs_between_validations(trainer) == epochs
