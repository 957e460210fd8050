"""Copies of a DataLoader with other arguments: same samples, same order."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from itertools import islice
from typing import Any

from lightning_perf.errors import TreatmentError

_MAX_ITEMS = 64  # of a container; later items are assumed to be like the first


def rebuilt(loader: Any, arguments: dict[str, Any]) -> Any:
    """Return a copy of a loader with other arguments, not yet started.

    The copy has the same dataset, sampler, batch sampler, collate function, generator and worker_init_fn, so it draws
    the same samples in the same order. Lightning's own re-instantiation does not keep a user's batch sampler.

    Args:
        loader: A ``torch.utils.data.DataLoader``, which is not changed.
        arguments: Those to change of ``num_workers``, ``pin_memory``, ``persistent_workers``, ``prefetch_factor`` and
            ``batch_size``.

    Raises:
        TreatmentError: The loader is a subclass, which may fetch in its own way; its dataset is an
            ``IterableDataset``, of which each worker would yield everything; its dataset holds tensors on a device; a
            batch sampler of the user decides the batch size; or arguments need workers that it does not have.
    """
    _check_copyable(loader)
    n_workers = arguments.get("num_workers", loader.num_workers)
    if n_workers == 0:
        asked = [name for name in ("persistent_workers", "prefetch_factor") if arguments.get(name)]
        if asked:
            raise TreatmentError(f"{asked[0]} needs worker processes, and the loader has none; add loader-workers")
    elif loader.num_workers == 0:
        device = _device_of(loader.dataset)
        if device is not None:
            raise TreatmentError(
                f"the dataset {type(loader.dataset).__qualname__} holds tensors on {device}, which worker processes "
                "cannot use: expected them on the CPU"
            )
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
    # A copy, because DataLoader's constructor takes either a batch sampler, or a batch size and a sampler, and would
    # create those that it is not given.
    new = copy.copy(loader)
    vars(new).update(wanted)  # not setattr, which DataLoader forbids for these
    return new


def _check_copyable(loader: Any) -> None:
    from torch.utils.data import DataLoader, IterableDataset

    kind = f"{type(loader).__module__}.{type(loader).__qualname__}"
    if type(loader) is not DataLoader:
        raise TreatmentError(
            f"the training loader is a {kind}: expected exactly torch.utils.data.DataLoader, since any other may fetch "
            "in its own way; change its arguments where it is made"
        )
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset) or "DataPipe" in type(dataset).__name__:
        raise TreatmentError(
            f"the dataset is the IterableDataset {type(dataset).__qualname__}, of which every worker would yield all "
            "samples: expected a dataset with __getitem__; shard it by torch.utils.data.get_worker_info() and set "
            "num_workers where the loader is made"
        )


def _device_of(value: Any, depth: int = 4) -> Any:
    """Return the device of a tensor in a dataset, its attributes or datasets it wraps; None if all are on the CPU."""
    import torch

    if isinstance(value, torch.Tensor):
        return None if value.device.type == "cpu" else value.device
    if depth == 0:
        return None
    parts: Iterable[Any] = ()
    if type(value) in (list, tuple):
        parts = value[:_MAX_ITEMS]
    elif type(value) is dict:
        parts = islice(value.values(), _MAX_ITEMS)
    elif hasattr(value, "__dict__") and callable(getattr(type(value), "__getitem__", None)):
        parts = vars(value).values()
    return next((found for found in (_device_of(part, depth - 1) for part in parts) if found is not None), None)


def _batch_sampler(loader: Any, batch_size: int) -> Any:
    from torch.utils.data import BatchSampler

    if loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
        sampler = type(loader.batch_sampler).__qualname__
        raise TreatmentError(
            f"the batches of the training loader are made by {sampler if loader.batch_sampler else 'its dataset'}: "
            "expected a DataLoader with batch_size; change the size where they are made"
        )
    return BatchSampler(loader.batch_sampler.sampler, batch_size, loader.batch_sampler.drop_last)
