"""Read settings: the Trainer's flags, its loaders and torch's switches. Nothing is iterated, created or changed.

Each field is read separately: a user's object that raises costs only that field, with the reason.
"""

import math
import os
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import msgspec
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, TensorDataset
from torch.utils.data import sampler as torch_samplers
from torch.utils.data.distributed import DistributedSampler

from lightning_perf import loader_kinds, seams
from lightning_perf.interrupts import raise_if_from_signal
from lightning_perf.probes import plain
from lightning_perf.probes.base import Probe, RunContext
from lightning_perf.probes.clock import NEVER
from lightning_perf.probes.model.summary import read_model
from lightning_perf.records import LoaderSettings, Session, Settings, TorchSettings, TrainerSettings

T = TypeVar("T")

STAGES_BY_FUNCTION = {"fit": ("train", "val"), "validate": ("val",), "test": ("test",), "predict": ("predict",)}
"""The loaders that each entry point of the Trainer uses."""

LOGGED = ("settings.trainer.prog_bar_metrics", "settings.trainer.sync_dist_on_step")
"""Settings that are known once steps have logged; `SettingsProbe` reads them."""

UNSHUFFLED_SAMPLERS = (torch_samplers.SequentialSampler,)
SHUFFLED_SAMPLERS = (
    torch_samplers.RandomSampler, torch_samplers.SubsetRandomSampler, torch_samplers.WeightedRandomSampler,
)  # fmt: skip
SIZED_SAMPLERS = (*UNSHUFFLED_SAMPLERS, *SHUFFLED_SAMPLERS, DistributedSampler)
"""torch's own: their length is arithmetic. A user's sampler may draw random numbers to compute its length."""


class SettingsProbe(Probe):
    """Reads the settings of the Trainer, its loaders, the model and torch; adds what only steps can show."""

    name = "settings"
    after = ("steps",)

    def __init__(self, run: RunContext) -> None:
        self._context = run
        self._saw_anomaly_detection = False
        self._next_step = 0

    def loops_ready(self, run: RunContext) -> None:
        run.settings, missing = read_settings(run.trainer, run.pl_module)
        self.missing.update(missing)

    @property
    def next_step(self) -> int:
        return self._next_step

    def step_begins(self, batch: Any) -> None:
        self._next_step = NEVER
        self._check_anomaly_detection()

    def epoch_ends(self) -> None:
        self._check_anomaly_detection()

    def _check_anomaly_detection(self) -> None:
        """Note whether it is on: the Trainer or a hook after ours may have switched it on."""
        if torch.is_anomaly_enabled():
            self._saw_anomaly_detection = True
            self._context.loop.time_anomaly_detection()

    def part(self, session: Session) -> Mapping[str, Any]:
        context, replace = self._context, msgspec.structs.replace
        settings = context.settings
        logged = seams.step_logging(context.trainer)
        if logged is not None:
            for name in LOGGED:
                self.missing.pop(name, None)
        prog_bar_metrics, sync_dist_on_step = logged or (None, None)
        trainer = replace(settings.trainer, prog_bar_metrics=prog_bar_metrics, sync_dist_on_step=sync_dist_on_step)
        if type(context.trainer.accumulate_grad_batches) is int:  # a callback may change it in each epoch
            trainer = replace(trainer, accumulate_grad_batches=context.trainer.accumulate_grad_batches)
        if self._saw_anomaly_detection:
            trainer = replace(trainer, is_anomaly_detection_on=True)
        model = settings.model
        if model is not None:
            model = replace(model, eval_outputs_have_graph=context.loop.outputs_have_graph)
        return {"settings": replace(settings, trainer=trainer, model=model)}


def read_settings(trainer: Any, pl_module: Any) -> tuple[Settings, dict[str, str]]:
    """Read all settings once the loaders are set up (``on_train_start`` or the like).

    Returns:
        The settings, and why fields are None, by path such as ``"settings.trainer.progress_bar_refresh_rate"``. A field
            that is None without a reason is None in the Trainer too.
    """
    missing = dict.fromkeys(LOGGED, "nothing has been logged yet")
    with plain.without_overrides():
        settings = Settings(
            trainer=_read_trainer(trainer, pl_module, missing),
            loaders=tuple(_read_loaders(trainer, missing)),
            model=_guard(missing, "settings.model", lambda: read_model(pl_module, trainer.optimizers)),
            torch=TorchSettings(**_read_fields(missing, "settings.torch", _TORCH_FIELDS)),
        )
    return settings, missing


_get = plain.attribute


class _Unknown(Exception):
    """Raised by a reader to leave its field None; the message is the reason."""


def _guard(missing: dict[str, str], path: str, read: Callable[[], T]) -> T | None:
    try:
        return read()
    except (_Unknown, plain.ComputedError) as unknown:
        missing[path] = str(unknown)
    except Exception as error:  # noqa: BLE001 - whatever the user's object raises is reported as the reason
        raise_if_from_signal(error)
        # Not str(error): that is the user's code too.
        missing[path] = "reading it raised " + "".join(traceback.format_exception_only(type(error), error)).strip()
    return None


def _read_fields(missing: dict[str, str], path: str, readers: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Read each field separately; those that cannot be read keep their default."""
    values = {field: _guard(missing, f"{path}.{field}", read) for field, read in readers.items()}
    return {field: value for field, value in values.items() if value is not None}


_TORCH_FIELDS: dict[str, Callable[[], Any]] = {
    "float32_matmul_precision": torch.get_float32_matmul_precision,
    "is_cudnn_benchmark_on": lambda: bool(torch.backends.cudnn.benchmark),
    "is_deterministic": torch.are_deterministic_algorithms_enabled,
    "is_onednn_on": torch._C._get_mkldnn_enabled,
    "n_threads": torch.get_num_threads,
    "n_interop_threads": torch.get_num_interop_threads,
    "omp_num_threads": lambda: os.environ.get("OMP_NUM_THREADS"),
}


def _read_trainer(trainer: Any, pl_module: Any, missing: dict[str, str]) -> TrainerSettings:
    def flag(name: str, convert: Callable[[Any], Any]) -> Callable[[], Any]:
        return lambda: convert(getattr(trainer, name))

    readers: dict[str, Callable[[], Any]] = {
        "package": lambda: seams.namespace(trainer),
        "accelerator": lambda: str(trainer.strategy.root_device.type),
        "strategy": lambda: type(trainer.strategy).__name__,
        "n_devices": flag("num_devices", _integer),
        "n_nodes": flag("num_nodes", _integer),
        **{name: flag(name, _integer) for name in _INTEGERS},
        **{name: flag(name, _text) for name in ("precision", "gradient_clip_algorithm")},
        **{name: flag(name, _limit) for name in ("limit_train_batches", "limit_val_batches", "num_sanity_val_steps")},
        "gradient_clip_val": lambda: None if trainer.gradient_clip_val is None else float(trainer.gradient_clip_val),
        "val_check_interval": lambda: _limit(getattr(trainer, "val_check_interval", None)),
        "is_anomaly_detection_on": lambda: torch.is_anomaly_enabled() or seams.is_anomaly_detection_requested(trainer),
        "is_inference_mode": lambda: bool(trainer.fit_loop.epoch_loop.val_loop.inference_mode),
        "is_deterministic": torch.are_deterministic_algorithms_enabled,
        "is_barebones": lambda: bool(trainer.barebones),
        "is_fast_dev_run": lambda: bool(trainer.fast_dev_run),
        "is_automatic_optimization": lambda: seams.has_trainer(trainer) and bool(pl_module.automatic_optimization),
        "progress_bar": lambda: _class_name(trainer.progress_bar_callback),
        "progress_bar_refresh_rate": lambda: _refresh_rate_steps(trainer.progress_bar_callback),
        "profiler": lambda: _class_name(seams.user_profiler(trainer)),
        "callbacks": lambda: tuple(_class_name(each) for each in trainer.callbacks if not _is_ours(each)),
        "loggers": lambda: tuple(type(each).__name__ for each in trainer.loggers),
        **{name: partial(_ddp_flag, trainer, name) for name in _DDP_FLAGS},
    }
    return TrainerSettings(**_read_fields(missing, "settings.trainer", readers))


_INTEGERS = ("world_size", "max_epochs", "max_steps", "accumulate_grad_batches", "log_every_n_steps",
             "check_val_every_n_epoch", "reload_dataloaders_every_n_epochs")  # fmt: skip
_DDP_FLAGS = ("find_unused_parameters", "static_graph", "gradient_as_bucket_view")


def _class_name(thing: Any) -> str | None:
    return None if thing is None else type(thing).__name__


def _text(value: Any) -> str | None:
    """Return the text of a flag that may be an enum."""
    return None if value is None else str(getattr(value, "value", value))


def _integer(value: Any) -> int | None:
    return None if value is None else int(value)


def _limit(value: Any) -> int | float | None:
    """Return a number of batches or a fraction; -1, as users write it, for Lightning's infinity."""
    if value is None:
        return None
    if isinstance(value, int):
        return int(value)
    return -1 if math.isinf(value) else float(value)


def _is_ours(callback: Any) -> bool:
    """Return whether a callback belongs to PerfDoctor and is no setting of the training."""
    return any(base.__module__.partition(".")[0] == "lightning_perf" for base in type(callback).__mro__)


def _refresh_rate_steps(progress_bar: Any) -> int | None:
    if progress_bar is None:
        return None
    is_on_class = plain.has_class_attribute(type(progress_bar), "refresh_rate")
    if not is_on_class and "refresh_rate" not in plain.attributes(progress_bar):
        raise _Unknown(f"{type(progress_bar).__name__} has no refresh rate")
    if not seams.refreshes_by_step(progress_bar):
        raise _Unknown(f"{type(progress_bar).__name__} refreshes by time, not every so many steps")
    return int(_get(progress_bar, "refresh_rate"))


def _ddp_flag(trainer: Any, name: str) -> bool:
    """Return a flag of DistributedDataParallel, from the wrapped module or else from the strategy."""
    if isinstance(trainer.model, torch.nn.parallel.DistributedDataParallel):
        return bool(getattr(trainer.model, name))
    arguments = seams.ddp_arguments(trainer.strategy)
    if arguments is None:
        raise _Unknown(f"{type(trainer.strategy).__name__} has no such flag")
    return bool(arguments.get(name, False))  # torch's default of all three


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
    """Yield the loaders of a collection in Lightning's order."""
    if nested is None:
        return
    items = plain.items_of(nested) if not plain.is_a(nested, DataLoader) else None
    if items is not None:
        for _, each in items:
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
        "call": loader_kinds.call_of(loader),
    }
    outer, loader = loader, loader_kinds.inner_loader(loader)
    if not plain.is_a(loader, DataLoader):
        known["refusal"] = loader_kinds.why_not_changed(loader)
        if known["call"] == loader_kinds.DALI:
            known |= loader_kinds.dali_settings(loader)
        missing[path] = f"{kind.__qualname__} is not a torch DataLoader: its settings are unknown"
        return LoaderSettings(**known)
    readers: dict[str, Callable[[], Any]] = {
        "dataset_class": lambda: type(_get(loader, "dataset")).__name__,
        "is_iterable": lambda: plain.is_a(_get(loader, "dataset"), IterableDataset),
        "n_batches": lambda: _n_batches(loader, stage, index, trainer),
        "n_samples": lambda: _n_samples(_get(loader, "dataset")),
        "batch_size": lambda: _batch_size(loader),
        "num_workers": lambda: int(_get(loader, "num_workers")),
        "pin_memory": lambda: bool(_get(loader, "pin_memory")),
        "persistent_workers": lambda: bool(_get(loader, "persistent_workers")),
        "prefetch_factor": lambda: _integer(_get(loader, "prefetch_factor")),
        "drop_last": lambda: bool(_get(loader, "drop_last")),
        "sampler_class": lambda: _class_name(_deciding_sampler(loader)),
        "is_shuffled": lambda: _is_shuffled(loader),
        "collate": lambda: _name_of(_get(loader, "collate_fn")),
        "multiprocessing_context": lambda: _start_method(loader),
        "is_in_memory_tensors": lambda: plain.is_a(_get(loader, "dataset"), TensorDataset),
        "refusal": lambda: loader_kinds.why_not_changed(outer),
        "n_shards": lambda: loader_kinds.n_shards(_get(loader, "dataset")),
    }
    return LoaderSettings(**known, **_read_fields(missing, path, readers))


def _own_batch_sampler(loader: DataLoader[Any]) -> Any | None:
    """Return a batch sampler of the user's class; None for torch's own and without batching."""
    batch_sampler = seams.user_batch_sampler(_get(loader, "batch_sampler"))  # None where nothing is batched
    return None if type(batch_sampler) is BatchSampler else batch_sampler


def _batch_size(loader: DataLoader[Any]) -> int | None:
    size, batch_sampler = _get(loader, "batch_size"), _get(loader, "batch_sampler")
    if size is None and _own_batch_sampler(loader) is None and batch_sampler is not None:
        return int(_get(seams.user_batch_sampler(batch_sampler), "batch_size"))
    return _integer(size)


def _inner_sampler(loader: DataLoader[Any]) -> Any:
    """Return the sampler inside the batch sampler: where the user passed one, the loader's own is unused."""
    inner = plain.stored(_get(loader, "batch_sampler"), "sampler")
    return _get(loader, "sampler") if inner is None else inner


def _deciding_sampler(loader: DataLoader[Any]) -> Any:
    own = _own_batch_sampler(loader)
    return _inner_sampler(loader) if own is None else own  # not `or`: the truth of a sampler is its length


def _is_shuffled(loader: DataLoader[Any]) -> bool:
    sampler = _inner_sampler(loader)
    if plain.is_a(_get(loader, "dataset"), IterableDataset):
        raise _Unknown("an IterableDataset decides its own order")
    if plain.is_a(sampler, DistributedSampler):
        return bool(_get(sampler, "shuffle"))
    if plain.is_a(sampler, SHUFFLED_SAMPLERS):
        return True
    if plain.is_a(sampler, UNSHUFFLED_SAMPLERS):
        return False
    raise _Unknown(f"{type(sampler).__name__} is not one of torch's samplers")


def _n_samples(dataset: Any) -> int:
    """Return a dataset's length unless user code counts it: that may be slow, or draw random numbers."""
    n_samples = plain.length_of(dataset)
    if n_samples is None:
        raise _Unknown(f"the length of {type(dataset).__name__} is not read: only user code can compute it")
    return n_samples


def _n_batches(loader: DataLoader[Any], stage: str, index: int, trainer: Any) -> int:
    """Return batches per epoch, if arithmetic or Lightning's own count gives it.

    Asking a loader over an IterableDataset would change it: torch then warns about batches beyond that length.
    """
    if (
        plain.class_attribute(type(loader), "__len__") is vars(DataLoader)["__len__"]
        and _own_batch_sampler(loader) is None
        and not plain.is_a(loader.dataset, IterableDataset)
    ):
        n_batches = _counted_batches(loader)
        if n_batches is not None:
            return n_batches
    is_train = stage == "train"
    limit = getattr(trainer, f"limit_{stage}_batches", None)
    is_unlimited = isinstance(limit, float) and limit == 1.0  # the integer 1 is one batch
    if not is_train or trainer.train_dataloader is loader:
        count = trainer.num_training_batches if is_train else getattr(trainer, f"num_{stage}_batches")
        count = count[index] if isinstance(count, list) else count
        is_whole = is_unlimited or (isinstance(limit, int) and bool(count) and count < limit)
        if count and is_whole and math.isfinite(count):
            return int(count)
    raise _Unknown("unsized, or only user code could count them")


def _counted_batches(loader: DataLoader[Any]) -> int | None:
    """Return the batches that one of torch's samplers draws from a dataset of known length; None otherwise."""
    sampler = _inner_sampler(loader)
    if type(sampler) not in SIZED_SAMPLERS:
        return None
    sources = (plain.stored(sampler, name) for name in ("data_source", "dataset"))
    source = next((each for each in sources if each is not None), None)
    if source is not None and plain.length_of(source) is None:
        return None
    return len(loader)


def _name_of(function: Any) -> str:
    """Return the qualified name of a function, or the class name of a callable object."""
    if plain.is_a(function, types.MethodType):
        function = function.__func__
    is_named = plain.is_a(function, (types.FunctionType, types.BuiltinFunctionType, type))
    return str(function.__qualname__ if is_named else type(function).__qualname__)


def _start_method(loader: DataLoader[Any]) -> str | None:
    """Return how workers are started if the user chose it; None for Python's default."""
    context = _get(loader, "multiprocessing_context")
    # allow_none: asking plainly would fix Python's default for good, and a later set_start_method would raise.
    return None if context is None else context.get_start_method(allow_none=True)
