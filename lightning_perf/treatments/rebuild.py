"""Copy a loader with other arguments: same samples and, unless an IterableDataset shards itself, same order."""

import copy
import multiprocessing
from typing import Any

from lightning_perf.dataset_contents import device_in, generator_in
from lightning_perf.errors import TreatmentError
from lightning_perf.loader_kinds import call_of, inner_loader, is_iterable, keeps_state, n_shards, why_not_changed


def rebuilt(loader: Any, arguments: dict[str, Any]) -> Any:
    """Return a copy of a loader with other arguments, not yet started.

    The copy has the same dataset, sampler, batch sampler, collate function, generator and worker_init_fn, so it draws
    the same samples in the same order. Lightning's own re-instantiation does not keep a user's batch sampler.

    Args:
        loader: A ``torch.utils.data.DataLoader`` or a loader of a known library, which is not changed.
        arguments: Those to change of ``num_workers``, ``pin_memory``, ``persistent_workers``, ``prefetch_factor`` and
            ``batch_size``; ``dataset`` is a function that returns another dataset for the loader.

    Raises:
        TreatmentError: The loader may fetch in its own way; its dataset is an ``IterableDataset``, of which each worker
            would yield everything, or has fewer shards than workers; its dataset holds tensors on a device; a batch
            sampler of the user decides the batch size; or arguments need workers that it does not have.
    """
    reason = why_not_changed(loader)
    if reason:
        raise TreatmentError(reason)
    inner = inner_loader(loader)
    if inner is not loader:
        new = copy.copy(loader)
        new.pipeline = [rebuilt(inner, arguments), *loader.pipeline[1:]]
        return new
    n_workers = arguments.get("num_workers", loader.num_workers)
    if n_workers == 0:
        needing = [name for name in ("persistent_workers", "prefetch_factor") if arguments.get(name)]
        if needing:
            raise TreatmentError(f"{needing[0]} needs worker processes, and the loader has none; add loader-workers")
    elif loader.num_workers == 0:
        device = device_in(loader.dataset)
        if device is not None:
            raise TreatmentError(
                f"the dataset {type(loader.dataset).__qualname__} holds tensors on {device}, which worker processes "
                "cannot use: expected them on the CPU"
            )
    shards = n_shards(loader.dataset)
    if shards is not None and n_workers > max(shards, loader.num_workers):
        raise TreatmentError(
            f"the dataset has {shards} shards, one or more per worker: set num_workers to at most {shards}"
        )
    wanted = {
        "num_workers": n_workers,
        "pin_memory": arguments.get("pin_memory", loader.pin_memory),
        "persistent_workers": n_workers > 0 and arguments.get("persistent_workers", loader.persistent_workers),
        "prefetch_factor": arguments.get("prefetch_factor", loader.prefetch_factor or 2) if n_workers > 0 else None,
        "_iterator": None,
    }
    if n_workers == 0:
        wanted |= {"_DataLoader__multiprocessing_context": None, "timeout": 0}  # neither is allowed without workers
    if "batch_size" in arguments:
        wanted["batch_size"] = arguments["batch_size"]
        wanted["batch_sampler"] = _batch_sampler(loader, arguments["batch_size"])
    if "dataset" in arguments:
        wanted["dataset"] = arguments["dataset"](loader)
    # A copy, because DataLoader's constructor takes either a batch sampler, or a batch size and a sampler, and would
    # create those that it is not given.
    new = copy.copy(loader)
    if call_of(loader) == "StreamingDataLoader":  # its dataset needs them to divide its chunks
        wanted["dataset"] = dataset = copy.copy(loader.dataset)
        wanted["_prefetch_factor"] = wanted["prefetch_factor"]
        dataset.set_num_workers(n_workers)
        dataset.set_batch_size(wanted.get("batch_size", loader.batch_size))
    vars(new).update(wanted)  # DataLoader forbids to set these attributes
    return new


def require_stateless(loader: Any) -> None:
    """Refuse to change a loader between epochs if checkpoints hold its state.

    Raises:
        TreatmentError: Checkpoints hold it, so they can only be resumed with the same number of workers.
    """
    if keeps_state(loader):
        raise TreatmentError(
            f"checkpoints hold the state of a {call_of(loader)}, which can only be resumed with as many workers: set "
            "num_workers where the loader is made"
        )


def require_forked_workers(loader: Any, arguments: dict[str, Any]) -> None:
    """Refuse workers for a loader without workers in a running training if they would not be forked.

    Other workers import the script again and get a pickled dataset: either may fail, and the training with it.

    Raises:
        TreatmentError: Workers would not be forked.
    """
    if inner_loader(loader).num_workers > 0 or not arguments.get("num_workers"):
        return
    # Asking plainly would fix Python's default for good, and a later ``set_start_method`` of the script would raise.
    method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    if method != "fork":
        raise TreatmentError(
            f"workers would be started by {method}, not by fork; set num_workers where the loader is made"
        )


def require_exact(loader: Any, arguments: dict[str, Any], draws_random: bool | None) -> None:
    """Refuse arguments that may change the samples of the loader, or the random states after it.

    Args:
        loader: A loader that can be rebuilt.
        arguments: See ``rebuilt``.
        draws_random: Whether fetching a batch draws from the global random generators; None if unknown.

    Raises:
        TreatmentError: They may change them, or it is not known.
    """
    from torch.utils import data

    samplers = (data.SequentialSampler, data.RandomSampler, data.SubsetRandomSampler, data.DistributedSampler)
    refused, loader = "", inner_loader(loader)
    if is_iterable(loader.dataset):
        refused = "workers yield the samples of an IterableDataset in another order"
    elif loader.generator is not None or getattr(loader.sampler, "generator", None) is not None:
        refused = "workers read ahead, which draws more random numbers from the loader's generator"
    elif type(loader.batch_sampler) is not data.BatchSampler or type(loader.batch_sampler.sampler) not in samplers:
        refused = "workers run a sampler of your own ahead of the training"
    elif loader.persistent_workers:
        refused = "workers that persist draw fewer random numbers than new ones in each epoch"
    elif arguments.get("num_workers", loader.num_workers) != loader.num_workers:
        own = generator_in((loader.dataset, loader.collate_fn))
        if loader.num_workers > 0:
            refused = "workers may draw random numbers, and each has its own"
        elif draws_random is not False:
            refused = (
                "fetching a batch draws random numbers"
                if draws_random
                else "too few steps were observed to know whether fetching a batch draws random numbers"
            )
        elif own is not None:
            refused = f"the dataset has a random generator of its own ({type(own).__name__})"
    if refused:
        raise TreatmentError(f"results may change: {refused}")


def _batch_sampler(loader: Any, batch_size: int) -> Any:
    from torch.utils.data import BatchSampler

    if loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
        sampler = type(loader.batch_sampler).__qualname__
        raise TreatmentError(
            f"the batches of the training loader are made by {sampler if loader.batch_sampler else 'its dataset'}: "
            "expected a DataLoader with batch_size; change the size where they are made"
        )
    return BatchSampler(loader.batch_sampler.sampler, batch_size, loader.batch_sampler.drop_last)
