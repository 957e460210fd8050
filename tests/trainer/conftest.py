"""A Trainer for tests, and the check that PerfDoctor leaves nothing behind."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer, seed_everything

from lightning_perf import PerfDoctor
from lightning_perf.probes.telemetry.pauses import GarbagePauses
from lightning_perf.seams.timed import _Timed

Make = Callable[..., Trainer]


@pytest.fixture(autouse=True)
def _quiet_and_seeded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    seed_everything(1, verbose=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture
def make_trainer(tmp_path: Path) -> Make:
    """Return a function that creates a quiet CPU Trainer writing below ``tmp_path``."""

    def make(*callbacks: Any, **arguments: Any) -> Trainer:
        defaults: dict[str, Any] = {
            "accelerator": "cpu",
            "devices": 1,
            "max_epochs": 1,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "default_root_dir": tmp_path,
        }
        if arguments.get("barebones"):
            defaults = {"accelerator": "cpu", "max_epochs": 1, "default_root_dir": tmp_path}
        return Trainer(callbacks=list(callbacks), **{**defaults, **arguments})

    return make


class Counted(Callback):
    """Count the steps that a Trainer runs, which differ between Lightning versions."""

    def __init__(self) -> None:
        self.n_steps = 0

    def on_train_batch_end(self, *_: Any) -> None:
        self.n_steps += 1


def is_ours(value: Any) -> bool:
    """Return whether an object comes from the package under test."""
    return type(value).__module__.startswith("lightning_perf") and not isinstance(value, PerfDoctor)


def assert_nothing_left(trainer: Trainer, profiler: Any) -> None:
    """Assert that the Trainer and its parts are as they were before PerfDoctor was added.

    Args:
        trainer: The Trainer after a run, however it ended.
        profiler: The profiler before the run.
    """
    assert trainer.profiler is profiler
    epoch_loop = trainer.fit_loop.epoch_loop
    owners = [
        trainer,
        profiler,
        trainer.strategy,
        trainer._logger_connector,
        trainer.fit_loop,
        epoch_loop,
        epoch_loop.val_loop,
        trainer.validate_loop,
        trainer.test_loop,
        trainer.predict_loop,
        *trainer.loggers,
        *trainer.callbacks,
    ]
    if trainer.lightning_module is not None:
        owners.append(trainer.lightning_module)
    for owner in owners:
        if isinstance(owner, PerfDoctor):
            assert owner._run is None
            continue
        left = {name for name, value in vars(owner).items() if is_ours(value) or isinstance(value, _Timed)}
        assert left == set(), f"{type(owner).__name__} still carries {left}"
    for optimizer in trainer.optimizers:
        assert not optimizer._optimizer_step_pre_hooks
        assert not optimizer._optimizer_step_post_hooks
    assert not any(isinstance(getattr(c, "__self__", None), GarbagePauses) for c in gc.callbacks)


def assert_adds_up(session: Any) -> None:
    """Assert that a session's times add up: phases to their span, epochs and startup within the run."""
    for stage in (session.steady, session.validation):
        if stage is None:
            continue
        assert sum(phase.total_s for phase in stage.phases.values()) == pytest.approx(stage.span_s, abs=1e-7)
        assert all(phase.total_s >= 0 for phase in stage.phases.values())
        assert stage.step_s.p50 > 0
    for epoch in session.epochs:
        assert sum(epoch.phases.values()) == pytest.approx(epoch.wall_s, abs=1e-7)
    assert sum(epoch.n_steps for epoch in session.epochs) == (session.run.n_steps if session.epochs else 0)
    assert sum(epoch.wall_s for epoch in session.epochs) <= session.run.wall_s + 1e-6
    assert session.probes_off == ()
