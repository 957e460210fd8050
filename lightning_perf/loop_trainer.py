"""A stand-in for the Trainer, for loops that have none: what probes and reports read of a Trainer."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import distributed, nn

from lightning_perf import seams
from lightning_perf.cgroups import ranks_on_node

NO_TRAINER = "a loop of your own has no Trainer"
_COLLECTIONS = (list, tuple, dict)


class SingleDeviceStrategy:
    """The strategy of a loop without Fabric."""

    def __init__(self, root_device: torch.device) -> None:
        self.root_device = root_device


class LoopTrainer:
    """Stand-in for the Trainer of a loop that has none; flags that only a Trainer has are None.

    ``watched`` has the modules, optimizers and schedulers that the user named.

    Attributes:
        is_stand_in: Distinguishes it from a Trainer (`seams.has_trainer`).
        module: The user's module; an empty one if none was named.
        optimizers: Optimizers seen so far.
        global_step: Number of optimizer steps so far.
        current_epoch: Number of loops over a loader that have ended.
    """

    is_stand_in = True
    barebones = fast_dev_run = interrupted = received_sigterm = sanity_checking = should_stop = _detect_anomaly = False
    accumulate_grad_batches = check_val_every_n_epoch = datamodule = gradient_clip_algorithm = gradient_clip_val = None
    limit_train_batches = limit_val_batches = log_every_n_steps = max_epochs = max_steps = num_sanity_val_steps = None
    precision_plugin = progress_bar_callback = reload_dataloaders_every_n_epochs = val_check_interval = None
    num_training_batches = math.inf

    def __init__(self, doctor: Any, watched: list[Any], fabric: Any) -> None:
        modules = [each for each in watched if isinstance(each, nn.Module)]
        model = modules[0] if modules else nn.Module()
        self.watched = watched
        self.module = seams.user_module(model) if len(modules) < 2 else nn.ModuleList(map(seams.user_module, modules))
        inner = (each for one in modules for each in one.modules())
        self.model = next((each for each in inner if isinstance(each, nn.parallel.DistributedDataParallel)), model)
        self.strategy = _strategy(fabric, model)
        n_ranks = distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1
        self.world_size = int(getattr(self.strategy, "world_size", n_ranks))
        rank = distributed.get_rank() if n_ranks > 1 else 0
        self.global_rank = int(getattr(self.strategy, "global_rank", rank))
        self.is_global_zero = self.global_rank == 0
        self.num_nodes = max(1, self.world_size // ranks_on_node(self.world_size))
        self.num_devices = self.world_size // self.num_nodes
        self.precision = getattr(getattr(self.strategy, "precision", None), "precision", None)
        self.profiler = seams.silent_profiler(doctor)
        self.callbacks = [doctor]
        self.early_stopping_callbacks: list[Any] = []
        self.loggers = list(fabric.loggers) if fabric is not None else []
        self.log_dir = next((str(each.log_dir) for each in self.loggers if getattr(each, "log_dir", None)), None)
        self.default_root_dir = Path.cwd()
        self._logger_connector = SimpleNamespace()
        # `LoopRun` begins and ends the iteration of a loader by this method, for `seams.tap_epoch_iteration`.
        self.fit_loop = SimpleNamespace(epoch_loop=SimpleNamespace(on_run_start=lambda call, *args: call(*args)))
        self.state = SimpleNamespace(fn="fit", stage="train")
        self.optimizers: list[Any] = []
        self.train_dataloader: Any = None
        self.val_dataloaders: Any = None
        self.global_step = self.current_epoch = 0


def shown_loader(loader: Any) -> Any:
    """Return a loader as probes see it, without Fabric's wrapper.

    Probes would take a collection of batches for a collection of loaders; they see an object with its class name.
    """
    loader = seams.user_loader(loader)
    kind = type(loader)
    return type(kind.__name__, (), {"__module__": kind.__module__})() if isinstance(loader, _COLLECTIONS) else loader


def missing_without_trainer(trainer: LoopTrainer) -> dict[str, str]:
    """Return why figures and phases that need a Trainer are missing."""
    reasons = {
        "loss_scaler": f"{NO_TRAINER}: skipped steps are not seen",
        "steady.phases.callbacks": f"{NO_TRAINER}, which would call callbacks and a progress bar",
    }
    if not trainer.loggers:
        reasons["steady.phases.logging"] = f"{NO_TRAINER}, and no logger of Fabric"
    if not any(hasattr(each, "get_last_lr") for each in trainer.watched):
        reasons["steady.phases.scheduler"] = "no scheduler was given to watch()"
    if trainer.world_size > 1:
        reasons["ranks"] = f"{NO_TRAINER}: only rank 0 is measured"
    return reasons


def _strategy(fabric: Any, model: Any) -> Any:
    strategy = fabric.strategy if fabric is not None else seams.fabric_strategy(model)
    if strategy is not None:
        return strategy
    parameter = next(model.parameters(), None)
    return SingleDeviceStrategy(torch.device("cpu") if parameter is None else parameter.device)
