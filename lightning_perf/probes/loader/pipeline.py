"""The parts of a loader in the child: sampler, dataset, collate function, and transport from a worker."""

import contextlib
import copy
import itertools
import multiprocessing
import pickle
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset
from torch.utils.data._utils import worker as torch_worker

from lightning_perf.probes import plain

from .child import error_line, unwind_on_signals
from .copying import copies_dataset

_PAUSE_S = 0.003
"""Pause of a replaying worker before each batch: the main process then waits for it, and no batch is queued."""
_MAX_REPLAYED = 60
"""Batches of a replaying worker."""


class Refused(Exception):
    """The loader cannot be probed; the message is the reason."""


class Pipeline:
    """The parts of a loader, owned by the child: the parent's objects do not change.

    A *unit* is the argument of one fetch: the indices of a batch, one index without batching, or for an
    ``IterableDataset`` only the number of samples. All stages of the probe share one stream of units, so that no stage
    reads data that another has put into the page cache; it starts over when the sampler is exhausted. With ``forks``,
    workers are forked whatever the loader's start method is: they start in milliseconds, with the same throughput.
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
        self.makes_batches = loader.batch_sampler is None  # batch_size=None: the dataset returns whole batches
        # Not "forkserver", Python 3.14's default, whose server belongs to the parent; "spawn" is as fast per batch.
        context = multiprocessing.get_context("fork") if forks else loader.multiprocessing_context
        self.context: Any = multiprocessing.get_context("spawn") if self.is_pickled else context
        if self.is_iterable:
            self.units: Iterator[Any] = itertools.repeat(self.batch_size or 1)
        else:
            sampler = loader.sampler if self.makes_batches else loader.batch_sampler
            self.units = _endless(sampler, "the sampler yields nothing")
        self._samples = _endless(dataset, "the dataset is empty")
        self.fetch_many = None if self.makes_batches or self.is_iterable else _maker_of_many(dataset)

    @property
    def is_batched(self) -> bool:
        """Whether one call of the dataset returns a whole batch."""
        return self.makes_batches or self.fetch_many is not None

    def calls(self, unit: Any) -> list[Any]:
        """Return the arguments of the dataset's calls for a unit."""
        if self.is_iterable:
            return list(range(unit))
        return [unit] if self.is_batched else list(unit)

    def fetch(self, call: Any) -> Any:
        """Return the result of one call of the dataset. Add nothing here: this call is sampled and profiled."""
        if self.is_iterable:
            return next(self._samples)
        if self.fetch_many is not None:
            return self.fetch_many(call)
        return self.dataset[call]

    def n_samples(self) -> int:
        """Return the length of the dataset.

        Raises:
            Refused: It has none.
        """
        try:
            n = len(self.dataset)
        except Exception as error:
            raise Refused(f"the dataset has no usable length: {error_line(error)}") from error
        if n <= 0:
            raise Refused("the dataset is empty")
        return n

    def samples_in(self, call: Any, result: Any) -> int:
        if self.fetch_many is not None or (self.makes_batches and isinstance(call, (list, tuple))):
            return max(1, len(call))
        return _n_samples_in(result) if self.makes_batches else 1

    def batch_of(self, results: list[Any]) -> Any:
        """Return the batch collated from the results of the calls for one unit."""
        return self.collate(results[0] if self.is_batched else results)

    def time_transport(self, results: list[Any], budget_s: float) -> tuple[list[float], float]:
        """Return the seconds to move each batch from a worker to the main process, and to start the worker.

        A worker of torch's repeats the samples in ``results``: the time from the end of collating consists of pickling,
        shared memory, the queue, and rebuilding the tensors. It stops ``budget_s`` after the first batch.
        """
        loader = DataLoader(
            _Replay(results),
            batch_size=None,
            num_workers=1,
            prefetch_factor=1,
            collate_fn=partial(_collate_and_stamp, self.collate, self.is_batched),
            multiprocessing_context=self.context,
        )
        durations_s: list[float] = []
        started_s = time.perf_counter()
        batches = iter(loader)
        begin_s = None
        for batch, made_s in batches:
            now_s = time.perf_counter()  # the same clock in all processes, on Linux
            if begin_s is None:  # the first batch starts threads and imports on both sides
                begin_s = now_s
            else:
                durations_s.append(now_s - made_s)
            del batch
            if now_s - begin_s > budget_s:
                break
        del batches
        return durations_s, (begin_s or started_s) - started_s

    def loader(self, num_workers: int, prefetch_factor: int | None) -> DataLoader[Any]:
        """Return a loader over the same parts and stream of units with another number of workers."""
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
        """Check that an ``IterableDataset`` divides its samples among workers.

        Raises:
            Refused: Neither it nor ``worker_init_fn`` reads the worker's id or their number.
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
        if not info.is_read:
            raise Refused(
                "the IterableDataset does not divide its samples among workers (it never asks get_worker_info()): "
                "each worker would yield all of them"
            )


def _maker_of_many(dataset: Any) -> Callable[[Any], Any] | None:
    """Return the method that makes several samples at once; None without one, and for a ``Subset`` without one."""
    if type(dataset) is Subset and _maker_of_many(dataset.dataset) is None:
        return None  # its own ``__getitems__`` calls the dataset for each index
    many = getattr(dataset, "__getitems__", None)
    return many if callable(many) else None


def _begin_worker(worker_init: Callable[[int], Any] | None, worker_id: int) -> None:
    """Call the user's ``worker_init_fn`` in a worker, whose code is unwound when the probe ends."""
    unwind_on_signals()
    if worker_init is not None:
        worker_init(worker_id)


class _Replay(Dataset[Any]):
    """A dataset of one batch's samples, copied each time, since tensors in shared memory are not moved again."""

    def __init__(self, results: list[Any]) -> None:
        self._results = results

    def __len__(self) -> int:
        return _MAX_REPLAYED

    def __getitem__(self, index: int) -> list[Any]:
        results = copy.deepcopy(self._results)
        time.sleep(_PAUSE_S)
        return results


def _collate_and_stamp(collate: Callable[[Any], Any], is_batched: bool, results: list[Any]) -> tuple[Any, float]:
    """Return the collated batch and the time at which collating ended."""
    return collate(results[0] if is_batched else results), time.perf_counter()


def _endless(source: Any, if_empty: str) -> Iterator[Any]:
    """Yield the items of a source, from its start again whenever they are exhausted.

    Raises:
        Refused: It has none; the message is ``if_empty``.
    """
    while True:
        is_empty = True
        for item in source:
            is_empty = False
            yield item
        if is_empty:
            raise Refused(if_empty)


class _WatchedInfo:
    """Torch's worker info that records whether its id or the number of workers is read."""

    def __init__(self, dataset: Any) -> None:
        self.is_read = False
        self._info = torch_worker.WorkerInfo(id=0, num_workers=1, seed=0, dataset=dataset)

    def __getattr__(self, name: str) -> Any:
        self.is_read |= name in ("id", "num_workers")
        return getattr(self._info, name)


def _n_samples_in(batch: Any) -> int:
    """Return the number of samples in a batch that the dataset made; 1 if it is unknown."""
    size = plain.batch_size(batch)
    if size is None and plain.items_of(batch) is None and not isinstance(batch, (str, bytes)):
        with contextlib.suppress(TypeError):  # without a length, as a tensor without dimensions is
            size = len(batch)  # of a subclass of tensors, a data frame or the user's own class
    return max(1, size or 1)
