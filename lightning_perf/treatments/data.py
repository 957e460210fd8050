"""Treatments of the training loader."""

import re
from functools import partial
from typing import Any, NamedTuple

from lightning_perf import seams
from lightning_perf.loader_kinds import inner_loader
from lightning_perf.records import LoaderSettings, Session, TrainerSettings

from .treatment import Treatment, whole_cores_per_rank

MAX_DEFAULT_WORKERS = 8
"""Most workers without a measurement: more rarely help, and each holds the batches that it prefetches."""


class LoaderTreatment(Treatment):
    """A change of ``DataLoader`` arguments. The ``Applier`` rebuilds each loader once for all such treatments."""

    is_live = True

    def applies_to(self, session: Session) -> str | None:
        loaders = train_loaders(session)
        if not loaders:
            return "the training loader was not seen"
        for loader in loaders:
            if reason := loader.why_not_changed():
                return reason
        return self.applies_to_loader(loaders[0], session)

    def applies_to_loader(self, loader: LoaderSettings, session: Session) -> str | None:
        """Return why it does not apply to the first training loader; None if it applies."""
        raise NotImplementedError


def train_loaders(session: Session | None) -> list[LoaderSettings]:
    """Return the session's training loaders."""
    return [loader for loader in session.settings.loaders if loader.stage == "train"] if session is not None else []


class Workers(NamedTuple):
    """Value of ``loader-workers``.

    Attributes:
        n: Worker processes.
        prefetch: Batches that each worker prefetches; None keeps the current number.
        is_pinned: Whether to use page-locked memory; False keeps the current setting.
    """

    n: int
    prefetch: int | None = None
    is_pinned: bool = False

    def __str__(self) -> str:
        prefetch = "" if self.prefetch is None else f"x{self.prefetch}"
        return f"{self.n}{prefetch}{'-pinned' if self.is_pinned else ''}"


class LoaderWorkers(LoaderTreatment):
    id = "loader-workers"
    summary = "fetches batches in worker processes, ahead of the training"
    when = (
        "Helps where the device waits for data. Workers persist across epochs, so that short epochs do not wait for "
        "them to start. They do not see changes to the dataset between epochs: leave out `persistent_workers` if you "
        "make any. An `IterableDataset` that shards itself yields its samples in another order, and the last batch of "
        "each worker may be smaller. `=0` removes workers where transferring a batch costs more than fetching it. "
        "Random augmentation in the dataset uses the workers' own seeds: other random numbers with the same "
        "distribution. Several loaders that shuffle without a generator of their own shuffle in another order."
    )
    value_form = "N workers, 0 for none; NxP also sets prefetch_factor=P; a final -pinned adds page-locked memory"
    value_pattern = r"(?!0+x)(?P<n>\d+)(x(?P<prefetch>[1-9]\d*))?(?P<pinned>-pinned)?"

    def applies_to_loader(self, loader: LoaderSettings, session: Session) -> str | None:
        wanted = self.default_value(session)
        is_set = wanted.n == loader.num_workers and wanted.prefetch in (None, loader.prefetch_factor)
        return f"num_workers is {wanted.n} already" if is_set else None

    def parse_value(self, text: str | None) -> Workers | None:
        match = re.fullmatch(self.value_pattern, super().parse_value(text) or "", re.ASCII)
        if match is None:
            return None
        return Workers(int(match["n"]), int(match["prefetch"]) if match["prefetch"] else None, bool(match["pinned"]))

    def default_value(self, session: Session | None) -> Workers:
        prescription = self.recommended(session)
        arguments = prescription.loader_args if prescription is not None else {}
        if "num_workers" in arguments:
            n_workers, prefetch = int(arguments["num_workers"]), arguments.get("prefetch_factor")
            return Workers(n_workers, prefetch, bool(arguments.get("pin_memory")))
        loaders = train_loaders(session)
        shards = [loader.n_shards for loader in loaders if loader.n_shards]
        cores = min(whole_cores_per_rank(session), MAX_DEFAULT_WORKERS, *shards)
        return Workers(cores - 1 if loaders and loaders[0].num_workers == cores and cores > 1 else cores)

    def excluded_by(self, value: Workers | None) -> frozenset[str]:
        is_without = value is not None and value.n == 0
        return frozenset({"loader-persistent", "loader-prefetch"}) if is_without else self.conflicts

    def loader_args(self, value: Workers, session: Session | None = None) -> dict[str, Any]:
        # Without workers, a DataLoader refuses persistent_workers=True.
        arguments: dict[str, Any] = {"num_workers": value.n, "persistent_workers": value.n > 0}
        if value.prefetch is not None:
            arguments["prefetch_factor"] = value.prefetch
        if value.is_pinned:
            arguments["pin_memory"] = True
        return arguments


class LoaderPersistent(LoaderTreatment):
    id = "loader-persistent"
    summary = "keeps worker processes across epochs instead of restarting them"
    when = (
        "Helps where epochs are short compared with the start of a worker. The workers' memory stays in use during "
        "validation."
    )
    acts_on = "loop"
    loader_argument = "persistent_workers"
    setting = True

    def applies_to_loader(self, loader: LoaderSettings, session: Session) -> str | None:
        if not loader.num_workers:
            return "there are no worker processes; loader-workers comes first"
        return "persistent_workers is on already" if loader.persistent_workers else None


class LoaderPinMemory(LoaderTreatment):
    id = "loader-pin-memory"
    summary = "puts batches into page-locked memory: copies to the device are faster and overlap with its work"
    when = (
        "Helps with an accelerator and visible host-to-device copies. The loader makes one more copy, into memory "
        "that cannot be swapped."
    )
    loader_argument = "pin_memory"
    setting = True

    def applies_to_loader(self, loader: LoaderSettings, session: Session) -> str | None:
        accelerator = session.settings.trainer.accelerator
        if accelerator in (None, "cpu", "mps"):
            return f"there is nothing to copy to: the accelerator is {accelerator or 'not known'}"
        return "pin_memory is on already" if loader.pin_memory else None


class LoaderPrefetch(LoaderTreatment):
    id = "loader-prefetch"
    summary = "lets each worker prefetch more batches, which evens out samples of uneven cost"
    when = "Helps where fetch times vary a lot. Memory grows with workers × factor × batch."
    value_form = "N, batches ahead for each worker, at least 1"
    least = 1
    default = 4  # twice torch's own default
    loader_argument = "prefetch_factor"

    def applies_to_loader(self, loader: LoaderSettings, session: Session) -> str | None:
        if not loader.num_workers:
            return "there are no worker processes; loader-workers comes first"
        value = self.default_value(session)
        return f"prefetch_factor is {value} already" if loader.prefetch_factor == value else None


class BatchSize(LoaderTreatment):
    id = "batch-size"
    safety = "semantics"
    effort = "minutes"
    summary = "trains with batches of N samples; lowers accumulation if that keeps the samples per step"
    when = (
        "Helps where the device has too little work and memory is left. Without accumulation to lower, a larger batch "
        "means fewer steps per epoch, so adapt the learning rate and its schedule. Without a value, a trial searches "
        "the fastest size."
    )
    is_live = False
    needs_loader = True  # the accumulation depends on the batch size before
    value_form = "N, samples per batch, or a multiple of the current number: x2, x4 …"
    value_pattern = r"x[2-9]\d*|x1\d+|[1-9]\d*"
    default = "x2"

    def applies_to_loader(self, loader: LoaderSettings, session: Session) -> str | None:
        return None if loader.batch_size is not None else "a batch sampler or the dataset decides the batch size"

    def trainer_flags(self, value: Any, session: Session | None = None) -> dict[str, Any]:
        batch_size = _batch_size(session)
        trainer = session.settings.trainer if session is not None else TrainerSettings()
        accumulated = trainer.accumulate_grad_batches
        if batch_size is None or accumulated is None or trainer.is_automatic_optimization is False:
            return {}
        kept = _accumulation(accumulated, batch_size, _resized(value, batch_size))
        return {} if kept in (None, accumulated) else {"accumulate_grad_batches": kept}

    def loader_args(self, value: Any, session: Session | None = None) -> dict[str, Any]:
        batch_size = _batch_size(session)
        if value.startswith("x") and batch_size is None:
            return {}
        return {"batch_size": _resized(value, batch_size or 1)}

    def change_trainer_arguments(self, value: Any, arguments: dict[str, Any], undos: seams.Undos) -> None:
        pass  # the accumulation follows the batch size of the loader that was rebuilt

    def loader_args_for(self, value: Any, loader: Any, is_strict: bool) -> dict[str, Any]:
        # For a loader without a batch size, `rebuilt` refuses any, with the reason.
        batch_size = getattr(inner_loader(loader), "batch_size", None)
        return {"batch_size": _resized(value, batch_size) if batch_size is not None else 1}

    def follow_loader(self, value: Any, trainer: Any, before: Any, after: Any, undos: seams.Undos) -> None:
        sizes = (inner_loader(loader).batch_size for loader in (before, after))
        kept = _accumulation(trainer.accumulate_grad_batches, *sizes)
        if kept is not None and trainer.lightning_module.automatic_optimization:  # else Lightning accumulates nothing
            seams.change_attribute(trainer, "accumulate_grad_batches", kept, undos)


def _batch_size(session: Session | None) -> int | None:
    """Return the batch size of the first training loader; None if unknown."""
    loaders = train_loaders(session)
    return loaders[0].batch_size if loaders else None


def _resized(value: str, batch_size: int) -> int:
    """Return the batch size that a value means, given the current one."""
    return batch_size * int(value[1:]) if value.startswith("x") else int(value)


def _accumulation(n_batches: int, batch_size: int, new_batch_size: int) -> int | None:
    """Return the batches per optimizer step that keep its samples; None if there is no such number."""
    n_samples = n_batches * batch_size
    return n_samples // new_batch_size if n_samples % new_batch_size == 0 else None


_CACHE_CODE = """\
class Cached(torch.utils.data.Dataset):  # each worker has its own: set persistent_workers=True
    def __init__(self, dataset):
        self.dataset, self.items = dataset, {}

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        if index not in self.items:
            self.items[index] = self.dataset[index]
        return self.items[index]  # default_collate copies it; do not change it in place


dataset = Cached(dataset)  # of the training loader"""


class DatasetCache(LoaderTreatment):
    id = "dataset-cache"
    effort = "minutes"
    summary = "keeps the dataset's items in memory: from the second epoch on, they are not loaded again"
    when = (
        "Helps where items are slow to load and all of them fit into memory. Items with random augmentation, or that "
        "change from epoch to epoch, must not be cached: put the random part behind the cache, or on the device. "
        "It is refused if loading draws random numbers, if one of a sample of items differs when loaded again, or if "
        "all items, at the mean size of the first ones, would take more than half of the free memory. Each worker has "
        "a cache of its own and persists: with `loader-workers=0` items are kept once, and each is loaded only once."
    )
    acts_on = "loop"
    is_live = False
    needs_loader = True
    code = _CACHE_CODE

    def applies_to_loader(self, loader: LoaderSettings, session: Session) -> str | None:
        trainer = session.settings.trainer
        if loader.is_iterable:
            return "items of an IterableDataset have no index"
        if loader.is_in_memory_tensors:
            return "the items are in memory already"
        if trainer.reload_dataloaders_every_n_epochs == 1:
            return "each epoch has a loader of its own"
        return "there is only one epoch" if trainer.max_epochs == 1 else None

    def loader_args(self, value: Any, session: Session | None = None) -> dict[str, Any]:
        loaders = train_loaders(session)
        return {"persistent_workers": True} if loaders and loaders[0].num_workers else {}

    def loader_args_for(self, value: Any, loader: Any, is_strict: bool) -> dict[str, Any]:
        from lightning_perf.cached_dataset import CachedDataset

        has_workers = getattr(inner_loader(loader), "num_workers", 0) > 0
        return {"dataset": partial(CachedDataset, is_strict=is_strict), "persistent_workers": has_workers}
