"""Measures, in a child process, what one batch costs to make where no worker processes are involved."""

from __future__ import annotations

import pickle
import random
import statistics
import time
from functools import partial
from typing import Any

from torch.utils.data import DataLoader

from .child import Child, Ended, EndingError, Say, one_line
from .copying import copies_dataset, refuses_batches, separate_descriptors
from .guard import guard

BUDGET_S = 0.5
"""No further batch is begun after this, once there are ``MIN_BATCHES``: the child takes a core from the training."""
MIN_BATCHES = 3
MAX_BATCHES = 20
LIMIT_S = 3.0
"""Default for when the child is killed."""


class InProcessCost:
    """Makes a few batches of a loader in a forked child and tells the median time of one.

    The child draws random indices of its own and calls ``collate_fn([dataset[i] for i in indices])``: neither the
    user's samplers nor any random state of this process is touched, and no loader is iterated.

    What a fork risks is what the loader's own workers risk (see ``Child``): a loader without workers, whose dataset may
    never have met a fork, is therefore refused, and where workers are not forked the child works on a pickled copy, as
    they do. Nobody asked for this, so that the child is guarded (see ``guard``).

    Use: ``start`` once, ``poll`` now and then, ``close`` at the end.
    """

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        """Nothing runs until ``start``.

        Args:
            limit_s: Seconds after which the child is killed.
        """
        self._child = Child(limit_s)
        self._result: float | str | None = "not measured: not started"

    def start(self, loader: Any) -> str | None:
        """Starts measuring.

        Returns:
            None when the child runs; else why this loader is not measured. ``poll`` then answers the same.
        """
        if self._child.is_alive:
            raise RuntimeError("start() was called while a measurement runs; call close() before starting another")
        reason = refuses_batches(loader)
        if reason is None:
            try:
                self._child.start(partial(_measure, loader))
            except OSError as error:  # no process, no memory or no descriptor to be had
                reason = f"no child process could be started: {error}"
        self._result = None if reason is None else f"not measured: {reason}"
        return None if reason is None else f"not measured: {reason}"

    def poll(self) -> float | str | None:
        """Seconds a batch (median), or why there is none, or None while the child runs. Never blocks."""
        ended = self._child.poll()
        if self._result is None and ended is not None:
            self._result = _result_of(ended)
        return self._result

    def close(self) -> None:
        """Ends a measurement that still runs; leaves no process and no descriptor behind. May be called twice."""
        if self._result is None:
            self._result = "not measured: ended before it was done"
        self._child.close()


def _result_of(ended: Ended) -> float | str:
    kind, _, text = ended.said.decode("utf-8", "replace").partition(" ")
    if kind == "seconds":
        return float(text)
    return f"not measured: {text or ended.trouble or 'its process ended without a word'}"


# -- in the child -----------------------------------------------------------------------------------------------------


def _measure(loader: DataLoader[Any], say: Say) -> None:
    separate_descriptors(keep=(say.descriptor,))
    guard(say)
    try:
        say(f"seconds {_median_batch_s(loader)!r}".encode())
    except _UnusableError as error:
        say(f"error {error}".encode("utf-8", "replace"))
    except EndingError:
        raise
    except BaseException as error:  # noqa: BLE001 - SystemExit too; it is reported
        say(f"error making a batch raised {one_line(error)}".encode("utf-8", "replace"))


class _UnusableError(Exception):
    """The dataset cannot be measured; the message is the reason."""


def _length_of(dataset: Any) -> int:
    try:
        n_samples = len(dataset)
    except Exception as error:
        raise _UnusableError(f"the dataset has no usable length: {one_line(error)}") from error
    if n_samples <= 0:
        raise _UnusableError("the dataset is empty")
    return n_samples


def _median_batch_s(loader: DataLoader[Any]) -> float:
    dataset, collate = loader.dataset, loader.collate_fn
    if copies_dataset(loader):
        dataset, collate = pickle.loads(pickle.dumps((dataset, collate)))
    fetch_many = getattr(dataset, "__getitems__", None)  # as torch's own fetcher
    n_samples = _length_of(dataset)
    assert loader.batch_size is not None
    batch_size = min(loader.batch_size, n_samples)
    draw = random.Random(0)
    durations_s: list[float] = []
    begin_s = time.perf_counter()
    while len(durations_s) < MIN_BATCHES or (
        len(durations_s) < MAX_BATCHES and time.perf_counter() - begin_s < BUDGET_S
    ):
        indices = [draw.randrange(n_samples) for _ in range(batch_size)]
        batch_begin_s = time.perf_counter()
        collate(fetch_many(indices) if fetch_many else [dataset[index] for index in indices])
        durations_s.append(time.perf_counter() - batch_begin_s)
    return statistics.median(durations_s)
