"""A loader taken into its parts, in the child: what to fetch next, fetching it, collating it."""

from __future__ import annotations

import itertools
import multiprocessing
import pickle
from collections.abc import Callable, Iterator, Sized
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data._utils import worker as torch_worker

from .child import end_in_order
from .copying import copies_dataset


class Refused(Exception):
    """The loader cannot be probed; the message is the reason."""


class Pipeline:
    """The parts of a loader. Everything here belongs to the child: nothing of the parent's is changed.

    A *unit* is what one fetch asks for: the indices of a batch, one index where nothing is batched, or for an
    ``IterableDataset`` only the number of samples. One stream of units serves the whole probe: it goes on where it
    stood, so that no stage finds in the page cache what another read, and begins anew when the sampler is exhausted.

    Args:
        loader: A plain ``DataLoader``, as the child has it.
        forks: Fork workers whatever the loader's start method is: they start in milliseconds, and the throughput is
            the same.
    """

    def __init__(self, loader: DataLoader[Any], forks: bool = False) -> None:
        self.is_pickled = copies_dataset(loader) and not forks
        dataset, collate, init = loader.dataset, loader.collate_fn, loader.worker_init_fn
        if self.is_pickled:
            try:
                dataset, collate, init = pickle.loads(pickle.dumps((dataset, collate, init)))
            except Exception as error:
                raise Refused(f"its workers are not forked and the dataset cannot be pickled: {error}") from error
        self.dataset: Any = dataset
        self.collate: Any = collate
        self.worker_init: Any = init
        self.batch_size = loader.batch_size
        self.num_workers = loader.num_workers
        self.prefetch_factor = loader.prefetch_factor
        self.is_iterable = isinstance(dataset, IterableDataset)
        self.makes_batches = loader.batch_sampler is None  # batch_size=None: the dataset is asked for whole batches
        # Python 3.14's fork server is the parent's; a fresh interpreter costs the same to a batch.
        context = multiprocessing.get_context("fork") if forks else loader.multiprocessing_context
        self.context: Any = multiprocessing.get_context("spawn") if self.is_pickled else context
        if self.is_iterable:
            self.units: Iterator[Any] = itertools.repeat(self.batch_size or 1)
        else:
            self.units = _Forever(loader.sampler if self.makes_batches else loader.batch_sampler)
        self._stream: Iterator[Any] | None = None
        many = getattr(dataset, "__getitems__", None)
        self.fetch_many = many if callable(many) and not self.makes_batches and not self.is_iterable else None

    @property
    def is_batched(self) -> bool:
        """Whether one call of the dataset gives a whole batch."""
        return self.makes_batches or self.fetch_many is not None

    def calls(self, unit: Any) -> list[Any]:
        """What the dataset is asked for, call by call, to serve a unit."""
        if self.is_iterable:
            return list(range(unit))
        return [unit] if self.is_batched else list(unit)

    def fetch(self, call: Any) -> Any:
        """One call of the dataset. Sampled and profiled: nothing is to be done here beside it."""
        if self.is_iterable:
            return self._next()
        if self.fetch_many is not None:
            return self.fetch_many(call)
        return self.dataset[call]

    def samples_in(self, call: Any, got: Any) -> int:
        """How many samples one call gave."""
        if self.fetch_many is not None or (self.makes_batches and isinstance(call, (list, tuple))):
            return max(1, len(call))
        return max(1, leading_size(got)) if self.makes_batches else 1

    def batch_of(self, gotten: list[Any]) -> Any:
        """The batch, from what the calls for one unit gave."""
        if self.makes_batches:
            return self.collate(gotten[0])
        return self.collate(gotten[0] if self.fetch_many is not None else gotten)

    def loader(self, num_workers: int, prefetch_factor: int | None) -> DataLoader[Any]:
        """A loader over the same parts with other workers; it goes on in the one stream of units."""
        arguments: dict[str, Any] = {}
        if num_workers:
            arguments = {
                "multiprocessing_context": self.context,
                "prefetch_factor": prefetch_factor or 2,
                "worker_init_fn": partial(_begin_worker, self.worker_init),
            }
        if self.is_iterable:
            arguments["batch_size"] = None if self.makes_batches else self.batch_size
        elif self.makes_batches:
            arguments |= {"batch_size": None, "sampler": self.units}
        else:
            arguments["batch_sampler"] = self.units
        return DataLoader(self.dataset, num_workers=num_workers, collate_fn=self.collate, **arguments)

    def check_sharding(self) -> None:
        """Sees that an ``IterableDataset`` divides itself among workers.

        Raises:
            Refused: It neither asks which worker it is in, nor does ``worker_init_fn``: every worker would yield all.
        """
        if not self.is_iterable:
            return
        info = _WatchedInfo(self.dataset)
        before = torch_worker._worker_info
        torch_worker._worker_info = info  # type: ignore[assignment]
        try:
            if self.worker_init is not None:
                self.worker_init(0)
            next(iter(self.dataset), None)
        finally:
            torch_worker._worker_info = before
        if not info.is_asked:
            raise Refused(
                "the IterableDataset does not divide its samples among workers (it never asks get_worker_info()): "
                "each worker would yield all of them"
            )

    def _next(self) -> Any:
        for _ in range(2):
            if self._stream is None:
                self._stream = iter(self.dataset)
            for sample in self._stream:
                return sample
            self._stream = None
        raise Refused("the dataset is empty")


def _begin_worker(worker_init: Callable[[int], Any] | None, worker_id: int) -> None:
    """Begin a worker as the user wants it, which leaves the user's code in order when the probe is ended."""
    end_in_order()
    if worker_init is not None:
        worker_init(worker_id)


class _Forever:
    """A sampler's indices, over and over; every ``iter`` goes on where the last one stood."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self._now: Iterator[Any] = iter(())

    def __iter__(self) -> _Forever:
        return self

    def __next__(self) -> Any:
        for _ in range(2):
            for unit in self._now:
                return unit
            self._now = iter(self._sampler)
        raise Refused("the sampler yields nothing")


class _WatchedInfo:
    """Stands in for torch's worker info and notes whether anyone asks which worker it is, and of how many."""

    def __init__(self, dataset: Any) -> None:
        self.is_asked = False
        self.seed = 0
        self.dataset = dataset

    @property
    def id(self) -> int:
        self.is_asked = True
        return 0

    @property
    def num_workers(self) -> int:
        self.is_asked = True
        return 1


def leading_size(value: Any) -> int:
    """Length of the first tensor or array found; 1 without one."""
    if isinstance(value, torch.Tensor) or hasattr(value, "__array_interface__"):
        return int(value.shape[0]) if value.ndim else 1
    if isinstance(value, dict):
        return leading_size(next(iter(value.values()), None))
    if isinstance(value, (list, tuple)) and value:
        return leading_size(value[0])
    return len(value) if isinstance(value, Sized) and not isinstance(value, (str, bytes)) else 1
