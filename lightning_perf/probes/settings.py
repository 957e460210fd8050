"""Reads what was set: the Trainer's flags, its loaders, torch's switches. Nothing is iterated, made or changed.

Every field is read on its own: an object of the user's that misbehaves costs that one field, with the reason.
"""

from __future__ import annotations

import math
import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, TensorDataset
from torch.utils.data import sampler as torch_samplers
from torch.utils.data.distributed import DistributedSampler

from lightning_perf import seams
from lightning_perf.records import LoaderSettings, Settings, TorchSettings, TrainerSettings

from .model import read_model

T = TypeVar("T")

STAGES_BY_FUNCTION = {"fit": ("train", "val"), "validate": ("val",), "test": ("test",), "predict": ("predict",)}
"""The loaders that each entry point of the Trainer uses."""

UNSHUFFLED_SAMPLERS = (torch_samplers.SequentialSampler,)
SHUFFLED_SAMPLERS = (
    torch_samplers.RandomSampler,
    torch_samplers.SubsetRandomSampler,
    torch_samplers.WeightedRandomSampler,
)
SIZED_SAMPLERS = (*UNSHUFFLED_SAMPLERS, *SHUFFLED_SAMPLERS, DistributedSampler)
"""torch's own: their length is arithmetic. A sampler of the user's may draw random numbers to tell its length."""


def read_settings(trainer: Any, pl_module: Any) -> tuple[Settings, dict[str, str]]:
    """Reads all settings in force; call it when the loaders are set up (``on_train_start`` or the like).

    Args:
        trainer: A Trainer of either namespace.
        pl_module: Its LightningModule.

    Returns:
        The settings, and why fields are None, by path such as ``"settings.trainer.progress_bar_refresh_rate"``.
        A field that is None and has no reason was None in the Trainer too.
    """
    missing: dict[str, str] = {}
    return Settings(
        trainer=_read_trainer(trainer, pl_module, missing),
        loaders=tuple(_read_loaders(trainer, missing)),
        model=_guard(missing, "settings.model", lambda: read_model(pl_module, trainer.optimizers)),
        torch=TorchSettings(**_read_fields(missing, "settings.torch", _TORCH_FIELDS)),
    ), missing


def read_step_logging(trainer: Any) -> tuple[int | None, bool | None]:
    """``prog_bar_metrics`` and ``sync_dist_on_step``, which are known only after the first steps; None until then."""
    return seams.step_logging(trainer) or (None, None)


class _Unknown(Exception):
    """Raised by a reader to leave its field None; the message is the reason."""


def _guard(missing: dict[str, str], path: str, read: Callable[[], T]) -> T | None:
    try:
        return read()
    except _Unknown as unknown:
        missing[path] = str(unknown)
    except Exception as error:  # noqa: BLE001 - whatever the user's object raises is reported as the reason
        # Not str(error): that is the user's code too.
        missing[path] = "reading it raised " + "".join(traceback.format_exception_only(type(error), error)).strip()
    return None


def _read_fields(missing: dict[str, str], path: str, readers: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Reads each field by itself; those that cannot be read are left at their default."""
    values = {field: _guard(missing, f"{path}.{field}", read) for field, read in readers.items()}
    return {field: value for field, value in values.items() if value is not None}


_TORCH_FIELDS: dict[str, Callable[[], Any]] = {
    "float32_matmul_precision": torch.get_float32_matmul_precision,
    "is_cudnn_benchmark_on": lambda: bool(torch.backends.cudnn.benchmark),
    "is_deterministic": torch.are_deterministic_algorithms_enabled,
    "n_threads": torch.get_num_threads,
    "n_interop_threads": torch.get_num_interop_threads,
    "omp_num_threads": lambda: os.environ.get("OMP_NUM_THREADS"),
}


# -- the Trainer's flags ----------------------------------------------------------------------------------------------


def _read_trainer(trainer: Any, pl_module: Any, missing: dict[str, str]) -> TrainerSettings:
    readers: dict[str, Callable[[], Any]] = {
        "precision": lambda: _text(trainer.precision),
        "accelerator": lambda: str(trainer.strategy.root_device.type),
        "strategy": lambda: type(trainer.strategy).__name__,
        "n_devices": lambda: _integer(trainer.num_devices),
        "n_nodes": lambda: _integer(trainer.num_nodes),
        "world_size": lambda: _integer(trainer.world_size),
        "max_epochs": lambda: _integer(trainer.max_epochs),
        "max_steps": lambda: _integer(trainer.max_steps),
        "accumulate_grad_batches": lambda: _integer(trainer.accumulate_grad_batches),
        "gradient_clip_val": lambda: None if trainer.gradient_clip_val is None else float(trainer.gradient_clip_val),
        "gradient_clip_algorithm": lambda: _text(trainer.gradient_clip_algorithm),
        "log_every_n_steps": lambda: _integer(trainer.log_every_n_steps),
        "val_check_interval": lambda: _limit(getattr(trainer, "val_check_interval", None)),
        "check_val_every_n_epoch": lambda: _integer(trainer.check_val_every_n_epoch),
        "limit_train_batches": lambda: _limit(trainer.limit_train_batches),
        "limit_val_batches": lambda: _limit(trainer.limit_val_batches),
        "num_sanity_val_steps": lambda: _limit(trainer.num_sanity_val_steps),
        "reload_dataloaders_every_n_epochs": lambda: _integer(trainer.reload_dataloaders_every_n_epochs),
        "is_anomaly_detection_on": lambda: torch.is_anomaly_enabled() or seams.is_anomaly_detection_asked(trainer),
        "is_inference_mode": lambda: bool(trainer.fit_loop.epoch_loop.val_loop.inference_mode),
        "is_deterministic": torch.are_deterministic_algorithms_enabled,
        "is_barebones": lambda: bool(trainer.barebones),
        "is_fast_dev_run": lambda: bool(trainer.fast_dev_run),
        "is_automatic_optimization": lambda: bool(pl_module.automatic_optimization),
        "progress_bar": lambda: _class_name(trainer.progress_bar_callback),
        "progress_bar_refresh_rate": lambda: _refresh_rate_steps(trainer.progress_bar_callback),
        "profiler": lambda: _class_name(seams.user_profiler(trainer)),
        "callbacks": lambda: tuple(_class_name(each) for each in trainer.callbacks if not _is_ours(each)),
        "loggers": lambda: tuple(type(each).__name__ for each in trainer.loggers),
        "prog_bar_metrics": lambda: _step_logging(trainer)[0],
        "sync_dist_on_step": lambda: _step_logging(trainer)[1],
        "find_unused_parameters": lambda: _ddp_flag(trainer, "find_unused_parameters"),
        "static_graph": lambda: _ddp_flag(trainer, "static_graph"),
        "gradient_as_bucket_view": lambda: _ddp_flag(trainer, "gradient_as_bucket_view"),
    }
    return TrainerSettings(**_read_fields(missing, "settings.trainer", readers))


def _class_name(thing: Any) -> str | None:
    return None if thing is None else type(thing).__name__


def _text(value: Any) -> str | None:
    """Text of a flag that may be an enum."""
    return None if value is None else str(getattr(value, "value", value))


def _integer(value: Any) -> int | None:
    return None if value is None else int(value)


def _limit(value: Any) -> int | float | None:
    """A number of batches or a fraction; "all", which Lightning holds as infinity, is the -1 that a user passes."""
    if value is None:
        return None
    if isinstance(value, int):
        return int(value)
    return -1 if math.isinf(value) else float(value)


def _is_ours(callback: Any) -> bool:
    """PerfDoctor, a class derived from it, or what applies treatments: none of it is a setting of the training."""
    return any(base.__module__.partition(".")[0] == "lightning_perf" for base in type(callback).__mro__)


def _refresh_rate_steps(progress_bar: Any) -> int | None:
    if progress_bar is None:
        return None
    if not hasattr(progress_bar, "refresh_rate"):
        raise _Unknown(f"{type(progress_bar).__name__} has no refresh rate")
    if not seams.refreshes_by_step(progress_bar):
        raise _Unknown(f"{type(progress_bar).__name__} refreshes by time, not every so many steps")
    return int(progress_bar.refresh_rate)


def _step_logging(trainer: Any) -> tuple[int, bool]:
    logged = seams.step_logging(trainer)
    if logged is None:
        raise _Unknown("nothing has been logged yet")
    return logged


def _ddp_flag(trainer: Any, name: str) -> bool:
    """A flag of DistributedDataParallel: from the wrapped module once there is one, before that from the strategy."""
    if isinstance(trainer.model, torch.nn.parallel.DistributedDataParallel):
        return bool(getattr(trainer.model, name))
    arguments = seams.ddp_arguments(trainer.strategy)
    if arguments is None:
        raise _Unknown(f"{type(trainer.strategy).__name__} has no such flag")
    return bool(arguments.get(name, False))  # torch's default of all three


# -- loaders ----------------------------------------------------------------------------------------------------------


def _read_loaders(trainer: Any, missing: dict[str, str]) -> Iterator[LoaderSettings]:
    function = _guard(missing, "settings.loaders", lambda: _text(trainer.state.fn))
    for stage in STAGES_BY_FUNCTION.get(function or "", ("train", "val", "test", "predict")):
        path = f"settings.loaders.{stage}"
        for index, loader in enumerate(_guard(missing, path, partial(_stage_loaders, trainer, stage)) or ()):
            read = partial(_read_loader, loader, stage, index, trainer, missing)
            if (settings := _guard(missing, f"{path}.{index}", read)) is not None:
                yield settings


def _stage_loaders(trainer: Any, stage: str) -> list[Any]:
    return list(_flatten(getattr(trainer, "train_dataloader" if stage == "train" else f"{stage}_dataloaders")))


def _flatten(nested: Any) -> Iterator[Any]:
    """The loaders of a collection in the order Lightning numbers them."""
    if nested is None:
        return
    if isinstance(nested, Mapping):
        for each in nested.values():
            yield from _flatten(each)
    elif isinstance(nested, list | tuple):
        for each in nested:
            yield from _flatten(each)
    elif type(nested).__name__ == "CombinedLoader":
        yield from _flatten(nested.iterables)
    else:
        yield nested


def _read_loader(loader: Any, stage: str, index: int, trainer: Any, missing: dict[str, str]) -> LoaderSettings:
    kind = type(loader)
    path = f"settings.loaders.{stage}.{index}"
    known: dict[str, Any] = {
        "stage": stage,
        "index": index,
        "class_name": f"{kind.__module__}.{kind.__qualname__}",
        "is_plain": kind is DataLoader,
    }
    if not isinstance(loader, DataLoader):
        missing[path] = f"{kind.__qualname__} is not a torch DataLoader: its settings are its own"
        return LoaderSettings(**known)
    readers: dict[str, Callable[[], Any]] = {
        "dataset_class": lambda: type(loader.dataset).__name__,
        "is_iterable": lambda: isinstance(loader.dataset, IterableDataset),
        "n_batches": lambda: _n_batches(loader, stage, trainer),
        "n_samples": lambda: _n_samples(loader.dataset),
        "batch_size": lambda: _batch_size(loader),
        "num_workers": lambda: int(loader.num_workers),
        "pin_memory": lambda: bool(loader.pin_memory),
        "persistent_workers": lambda: bool(loader.persistent_workers),
        "prefetch_factor": lambda: _integer(loader.prefetch_factor),
        "drop_last": lambda: bool(loader.drop_last),
        "sampler_class": lambda: _class_name(_deciding_sampler(loader)),
        "is_shuffled": lambda: _is_shuffled(loader),
        "collate": lambda: _name_of(loader.collate_fn),
        "multiprocessing_context": lambda: _start_method(loader),
        "is_in_memory_tensors": lambda: isinstance(loader.dataset, TensorDataset),
    }
    return LoaderSettings(**known, **_read_fields(missing, path, readers))


def _own_batch_sampler(loader: DataLoader[Any]) -> Any | None:
    """A batch sampler of the user's own, which alone decides; None where batches are grouped in the usual way."""
    batch_sampler = seams.user_batch_sampler(loader.batch_sampler)  # None where nothing is batched
    return None if type(batch_sampler) is BatchSampler else batch_sampler


def _batch_size(loader: DataLoader[Any]) -> int | None:
    if loader.batch_size is None and _own_batch_sampler(loader) is None and loader.batch_sampler is not None:
        return int(seams.user_batch_sampler(loader.batch_sampler).batch_size)
    return _integer(loader.batch_size)


def _inner_sampler(loader: DataLoader[Any]) -> Any:
    """The sampler of the batch sampler: where the user passed one, the loader's own is a stand-in."""
    inner = getattr(loader.batch_sampler, "sampler", None)
    return loader.sampler if inner is None else inner


def _deciding_sampler(loader: DataLoader[Any]) -> Any:
    own = _own_batch_sampler(loader)
    return _inner_sampler(loader) if own is None else own  # not `or`: the truth of a sampler is its length


def _is_shuffled(loader: DataLoader[Any]) -> bool:
    sampler = _inner_sampler(loader)
    if isinstance(loader.dataset, IterableDataset):
        raise _Unknown("an IterableDataset decides its own order")
    if isinstance(sampler, DistributedSampler):
        return bool(sampler.shuffle)
    if isinstance(sampler, SHUFFLED_SAMPLERS):
        return True
    if isinstance(sampler, UNSHUFFLED_SAMPLERS):
        return False
    raise _Unknown(f"{type(sampler).__name__} is not one of torch's samplers")


def _n_samples(dataset: Any) -> int:
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise _Unknown(f"{type(dataset).__name__} is not asked for a length: it makes its samples as it goes")
    return len(dataset)


def _n_batches(loader: DataLoader[Any], stage: str, trainer: Any) -> int:
    """Batches an epoch, where telling needs only arithmetic, or where Lightning asked already.

    Asking a loader over an IterableDataset would change it: torch then warns about batches beyond that length.
    """
    sampler = _inner_sampler(loader)
    is_sized = type(sampler) in SIZED_SAMPLERS and type(loader).__len__ is DataLoader.__len__
    is_sized = is_sized and _own_batch_sampler(loader) is None
    if is_sized and not isinstance(loader.dataset, IterableDataset):
        return len(loader)
    limit = trainer.limit_train_batches
    is_unlimited = isinstance(limit, float) and limit == 1.0  # the integer 1 is one batch
    if stage == "train" and trainer.train_dataloader is loader and is_unlimited:
        told = trainer.num_training_batches
        if told and math.isfinite(told):
            return int(told)
    raise _Unknown("unsized, or only code of the user's could tell")


def _name_of(function: Any) -> str:
    """Qualified name of a function; class name of a callable object."""
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)


def _start_method(loader: DataLoader[Any]) -> str | None:
    """How workers are started, where the user chose; None stands for Python's default."""
    context = loader.multiprocessing_context
    # allow_none: asking plainly would fix Python's default for good, and a later set_start_method would raise.
    return None if context is None else context.get_start_method(allow_none=True)
