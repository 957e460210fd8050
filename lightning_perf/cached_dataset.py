"""A dataset that keeps its items in memory, as long as loading them again gives the same."""

import logging
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.data import Dataset, TensorDataset, get_worker_info

from .cgroups import free_bytes, ranks_on_node
from .dataset_contents import generator_in, random_states
from .errors import TreatmentError
from .interrupts import error_text
from .loader_kinds import is_iterable

MEMORY_SHARE = 0.5  # of the free memory, for the caches of all processes: the training needs memory, too
_MAX_DEPTH = 4  # datasets inside one another whose attributes are compared
SAMPLED_ITEMS = 32  # loaded before the size of all of them is judged


class CachedDataset(Dataset[Any]):
    """The map-style dataset of a ``DataLoader``, with a cache in each process; other attributes are the dataset's own.

    The loads that the training makes anyway show whether they draw from the global random generators and whether all
    items will fit. The first, second, fourth, eighth … item that is in the cache is loaded again, to be compared;
    the count begins again when a number or string among the dataset's attributes has changed.

    Args:
        loader: The loader, with its final number of workers.
        is_strict: Whether to raise ``TreatmentError`` if items turn out not to be cacheable; otherwise warn.

    Raises:
        TreatmentError: Items have no index, are in memory already, or may be random.
    """

    _attributes: list[Any]  # of the dataset, after the last load

    def __init__(self, loader: Any, is_strict: bool) -> None:
        dataset, refused = loader.dataset, ""
        if is_iterable(dataset):
            refused = "items of an IterableDataset have no index"
        elif type(dataset) in (TensorDataset, list, tuple):
            refused = "the items are in memory already"
        elif (own := generator_in(dataset)) is not None:
            refused = f"the dataset has a random generator of its own ({type(own).__name__})"
        if refused:
            raise TreatmentError(f"dataset-cache cannot be applied: {refused}")
        ranks = torch.distributed
        n_ranks = ranks.get_world_size() if ranks.is_available() and ranks.is_initialized() else 1
        n_processes = max(1, loader.num_workers) * ranks_on_node(n_ranks)
        limit = MEMORY_SHARE * free_bytes() / n_processes
        vars(self).update(_dataset=dataset, _items={}, _n_bytes=0, _n_hits=0, _is_off=False)
        vars(self).update(_is_strict=is_strict, _n_processes=n_processes, _limit=limit, _attributes=[])

    def __len__(self) -> int:
        return len(self._dataset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_dataset" not in vars(self):  # copies and pickles ask for these
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in vars(self):
            vars(self)[name] = value
        else:
            setattr(self._dataset, name, value)

    def __getitem__(self, index: Any) -> Any:
        return self.__getitems__([index], one_by_one=True)[0]

    def __getitems__(self, indices: Sequence[Any], one_by_one: bool = False) -> Any:
        load = None if one_by_one else getattr(self._dataset, "__getitems__", None)
        load = load or (lambda some: [self._dataset[index] for index in some])
        if not self._is_off and not all(isinstance(index, (int, np.integer)) for index in indices):
            self._refuse("the sampler does not yield whole numbers")
        if self._is_off:
            return load(indices)
        if self._attributes != _plain_attributes(self._dataset):  # such as an epoch that items depend on
            self._n_hits = 0
        due = [at for at, index in enumerate(indices) if index not in self._items or self._hit()]
        found: dict[int, Any] = {}
        if due:
            before = random_states()
            loaded = load([indices[at] for at in due])
            is_random = random_states() != before
            reason = "loading items draws random numbers" if is_random else self._keep(indices, due, loaded)
            if reason:
                self._refuse(reason)
                return loaded if len(due) == len(indices) else load(indices)
            found = dict(zip(due, loaded, strict=True))
        self._attributes = _plain_attributes(self._dataset)  # after loading, which may count items
        return [found[at] if at in found else tree_map(_copy, self._items[i]) for at, i in enumerate(indices)]

    def _hit(self) -> bool:
        """Count a hit of the cache; return whether the item is loaded again, to be compared."""
        self._n_hits += 1
        return bool(self._n_hits & (self._n_hits - 1) == 0)

    def _keep(self, indices: Sequence[int], due: list[int], loaded: Any) -> str:
        """Keep copies of items that were loaded; return why that is not possible."""
        if type(loaded) is not list:
            return "__getitems__ of the dataset does not return a list of items"
        try:
            n_items = len(self)
            for index, item in zip([indices[at] for at in due], loaded, strict=True):
                if index in self._items:
                    if _bits(item) != _bits(self._items[index]):
                        return f"item {index} differs when it is loaded again"
                    continue
                self._items[index] = tree_map(_copy, item)
                self._n_bytes += sum(
                    max(sys.getsizeof(one), getattr(one, "nbytes", 0)) for one in tree_flatten(item)[0]
                )
                is_judged = len(self._items) >= min(n_items, SAMPLED_ITEMS)
                if (self._whole_size if is_judged else self._n_bytes) > self._limit:
                    return self._why_not_in_memory()
        except Exception as error:  # noqa: BLE001 - the training goes on without it
            return error_text(error)
        return ""

    @property
    def _whole_size(self) -> float:
        """Bytes of all items, if the others are as large as those in the cache."""
        return float(self._n_bytes / max(1, len(self._items)) * len(self))

    def _why_not_in_memory(self) -> str:
        return (
            f"{len(self):,} items take about {_mib(self._whole_size)} in each of the {self._n_processes} processes "
            f"that load; each may use {_mib(self._limit)}, together {MEMORY_SHARE:.0%} of the free memory"
        )

    def _refuse(self, reason: str) -> None:
        self._items.clear()
        self._is_off = True
        if self._is_strict:
            raise TreatmentError(f"dataset-cache cannot be applied: {reason}")
        worker = get_worker_info()
        if worker is None or worker.id == 0:
            logging.getLogger("lightning_perf").warning("dataset-cache was switched off: %s", reason)


def size_of_all(cached: CachedDataset) -> float:
    """Return the bytes that all items will take, estimated from those in the cache.

    A function, since attributes of a ``CachedDataset`` are those of its dataset.

    Raises:
        TreatmentError: They are more than this process may use.
    """
    if cached._whole_size > cached._limit:
        raise TreatmentError(f"dataset-cache cannot be applied: {cached._why_not_in_memory()}")
    return cached._whole_size


def require_same(cached: CachedDataset, index: int) -> None:
    """Load an item again.

    Raises:
        TreatmentError: It differs from the one in the cache.
    """
    reason = cached._keep([index], [0], [cached._dataset[index]])
    if reason:
        raise TreatmentError(f"dataset-cache cannot be applied: {reason}")


def _plain_attributes(dataset: Any) -> list[Any]:
    """Return the numbers and strings among the attributes of a dataset and of the datasets that it wraps."""
    found: list[Any] = []
    for _ in range(_MAX_DEPTH):
        attributes = getattr(dataset, "__dict__", {})
        found += [value for value in attributes.values() if type(value) in (bool, int, float, str)]
        dataset = attributes.get("dataset")
    return found


def _mib(n_bytes: float) -> str:
    return f"{n_bytes / 2**20:,.4g} MiB"


def _copy(leaf: Any) -> Any:
    """Return a copy, because code that gets an item may change it in place."""
    copy: Any = leaf if isinstance(leaf, (int, float, complex, str, bytes, np.generic, type(None))) else None
    if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu" and not leaf.requires_grad:
        copy = leaf.clone()
    elif isinstance(leaf, np.ndarray) and not leaf.dtype.hasobject:
        copy = leaf.copy(order="K")
    if type(copy) is not type(leaf):
        raise TypeError(
            f"items hold a {type(leaf).__qualname__}; expected tensors on the CPU, arrays, numbers and texts"
        )
    return copy


def _bits(item: Any) -> list[Any]:
    """Return a value that is equal for two items that are the same, NaN included."""
    leaves, structure = tree_flatten(item)
    bits: list[Any] = [structure]
    for leaf in leaves:
        data = leaf.contiguous().flatten().view(torch.uint8).numpy() if isinstance(leaf, torch.Tensor) else leaf
        bits += [type(leaf), getattr(leaf, "dtype", None), getattr(leaf, "shape", None)]
        bits.append(data.tobytes() if isinstance(data, np.ndarray) else repr(data))
    return bits
