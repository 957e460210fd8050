"""Copy a loader with other arguments: same samples and, unless an IterableDataset shards itself, same order."""

import copy
import pickle
import random
import sys
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from typing import Any

from lightning_perf.errors import TreatmentError
from lightning_perf.loader_kinds import call_of, inner_loader, is_iterable, keeps_state, n_shards, refuses_change

_MAX_ITEMS = 64  # items of a container that are searched; later ones are assumed to be alike


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
    reason = refuses_change(loader)
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
        device = _first_of(loader.dataset, _device_of)
        if device is not None:
            raise TreatmentError(
                f"the dataset {type(loader.dataset).__qualname__} holds tensors on {device}, which worker processes "
                "cannot use: expected them on the CPU"
            )
    shards = n_shards(loader.dataset)
    if shards is not None and n_workers > max(shards, loader.num_workers):
        raise TreatmentError(f"the dataset has {shards} shards: at most as many workers get data")
    wanted = {
        "num_workers": n_workers,
        "pin_memory": arguments.get("pin_memory", loader.pin_memory),
        "persistent_workers": n_workers > 0 and arguments.get("persistent_workers", loader.persistent_workers),
        "prefetch_factor": arguments.get("prefetch_factor", loader.prefetch_factor or 2) if n_workers > 0 else None,
        "_iterator": None,
    }
    if n_workers == 0:
        wanted["_DataLoader__multiprocessing_context"] = None
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
        refused = "workers take more random numbers from the loader's generator, which read ahead"
    elif type(loader.batch_sampler) is not data.BatchSampler or type(loader.batch_sampler.sampler) not in samplers:
        refused = "workers run a sampler of your own ahead of the training"
    elif loader.persistent_workers:
        refused = "workers that persist draw fewer random numbers than new ones in each epoch"
    elif arguments.get("num_workers", loader.num_workers) != loader.num_workers:
        own = generator_in((loader.dataset, loader.collate_fn))
        if loader.num_workers > 0:
            refused = "workers may draw random numbers, and each has its own"
        elif draws_random is not False:
            refused = "fetching a batch draws random numbers" if draws_random else "too few steps were watched"
        elif own is not None:
            refused = f"the dataset has a random generator of its own ({type(own).__name__})"
    if refused:
        raise TreatmentError(f"results may change: {refused}")


def random_states() -> tuple[Any, ...]:
    """Return the states of the global random generators of torch on the CPU, Python and numpy, to be compared."""
    import torch

    numpy = sys.modules.get("numpy")
    state = pickle.dumps(numpy.random.get_state()) if numpy is not None else b""
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), state


def generator_in(value: Any) -> Any:
    """Return a random generator that a dataset, or what it holds, has as an attribute; None without one."""
    return _first_of(value, _random_generator)


def _random_generator(value: Any) -> Any:
    """Return the value if it is a random generator, else None."""
    kind = type(value)
    is_known = kind.__module__.partition(".")[0] in ("numpy", "torch", "random")
    return value if is_known and kind.__name__ in ("Generator", "RandomState", "Random") else None


def _device_of(value: Any) -> Any:
    """Return the device of a tensor that is not on the CPU; None for other values."""
    import torch

    return value.device if isinstance(value, torch.Tensor) and value.device.type != "cpu" else None


def _first_of(value: Any, read: Callable[[Any], Any], depth: int = 8, seen: set[int] | None = None) -> Any:
    """Return the first result of ``read`` that is not None, of a value and what it holds, ``depth`` levels deep."""
    import torch

    found, seen = read(value), set() if seen is None else seen
    if found is not None or isinstance(value, torch.Tensor) or depth == 0 or id(value) in seen:
        return found
    seen.add(id(value))
    if type(value) in (int, float, str, bytes):
        return None
    parts: Iterable[Any] = ()
    if type(value) in (list, tuple):
        parts = value[:_MAX_ITEMS]
    elif type(value) is dict:
        parts = islice(value.values(), _MAX_ITEMS)
    elif isinstance(value, partial):
        parts = (value.func, *value.args, *value.keywords.values())
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        parts = vars(value).values()
    every = (_first_of(part, read, depth - 1, seen) for part in parts)
    return next((found for found in every if found is not None), None)


def _batch_sampler(loader: Any, batch_size: int) -> Any:
    from torch.utils.data import BatchSampler

    if loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
        sampler = type(loader.batch_sampler).__qualname__
        raise TreatmentError(
            f"the batches of the training loader are made by {sampler if loader.batch_sampler else 'its dataset'}: "
            "expected a DataLoader with batch_size; change the size where they are made"
        )
    return BatchSampler(loader.batch_sampler.sampler, batch_size, loader.batch_sampler.drop_last)
