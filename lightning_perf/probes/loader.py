"""Measures, in a child process, what one batch costs to make where no worker processes are involved."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import logging
import multiprocessing
import os
import pickle
import random
import signal
import statistics
import sys
import time
import traceback
import warnings
from collections.abc import Iterable
from typing import Any, NoReturn

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

BUDGET_S = 0.5
"""No further batch is begun after this, once there are ``MIN_BATCHES``: the child takes a core from the training."""
MIN_BATCHES = 3
MAX_BATCHES = 20
LIMIT_S = 3.0
"""Default for when the child is killed."""

_MAX_MESSAGE_BYTES = 2048
"""Below PIPE_BUF (4096 on Linux): the child's one write neither blocks nor arrives in parts."""

_CHILD_SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGALRM")
    if hasattr(signal, name)
)
"""Those for which a launcher or the user may have set handlers that are not meant for the child."""

_PARENTS_STREAMS: list[Any] = []
"""In the child: streams of the parent's. Letting go of one would write out a second time what it still buffers."""


class InProcessCost:
    """Makes a few batches of a loader in a forked child and tells the median time of one.

    The child draws random indices of its own and calls ``collate_fn([dataset[i] for i in indices])``: neither the
    user's samplers nor any random state of this process is touched, and no loader is iterated. It is forked rather than
    started afresh because the dataset is then at hand without being pickled, and by ``os.fork`` because a
    daemonic process (as some launchers make) may not have children of ``multiprocessing``.

    What a fork risks is what the loader's own workers risk. A lock that another thread held at that moment
    stays locked in the child: it then hangs and is killed. A CUDA context cannot be used in it: a dataset that does
    raises. A file position is shared with the parent: a loader without workers, whose dataset may never have met
    a fork, is therefore refused, and where workers are not forked the child works on a pickled copy, as they do.

    Use: ``start`` once, ``poll`` now and then, ``close`` at the end.
    """

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        """Nothing runs until ``start``.

        Args:
            limit_s: Seconds after which the child is killed.
        """
        self._limit_s = limit_s
        self._pid: int | None = None
        self._pipe: int | None = None
        self._deadline_s = 0.0
        self._result: float | str | None = "not measured: not started"

    def start(self, loader: Any) -> str | None:
        """Starts measuring.

        Returns:
            None when the child runs; else why this loader is not measured. ``poll`` then answers the same.
        """
        if self._pid is not None:
            raise RuntimeError("start() was called while a measurement runs; call close() before starting another")
        reason = _refusal(loader)
        if reason is None:
            try:
                self._fork(loader)
            except OSError as error:  # no process, no memory or no descriptor to be had
                reason = f"no child process could be started: {error}"
        if reason is not None:
            self._result = f"not measured: {reason}"
            return self._result
        return None

    def poll(self) -> float | str | None:
        """Seconds a batch (median), or why there is none, or None while the child runs. Never blocks."""
        if self._result is not None:
            self._reap()  # one that was killed may have taken its time to go
            return self._result
        is_late = time.monotonic() > self._deadline_s
        # Reaped first, read second: what the child wrote before it ended is in the pipe by then.
        is_gone = self._reap(kill=is_late)
        if is_gone or is_late:
            reason = f"it took longer than {self._limit_s:g} s" if is_late else "its process ended without a word"
            self._result = self._read_result() or f"not measured: {reason}"
            self._close_pipe()
        return self._result

    def close(self) -> None:
        """Ends a measurement that still runs; leaves no process and no descriptor behind. May be called twice."""
        if self._result is None:
            self._result = "not measured: ended before it was done"
        self._close_pipe()
        # A killed process is gone within milliseconds unless the kernel itself is stuck in its behalf (a dead
        # network disk): training is not to hang for that.
        for _ in range(200):
            if self._reap(kill=True):
                return
            time.sleep(0.01)

    def _fork(self, loader: DataLoader[Any]) -> None:
        read_end, write_end = os.pipe()
        # A Ctrl-C in the child before it ignores them would unwind the user's stack there.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _CHILD_SIGNALS)
        try:
            with warnings.catch_warnings():
                # Python warns of a fork beside threads; the class says why the risk is taken.
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
            if pid == 0:
                _run_child(write_end, loader, self._limit_s)
            # Known before signals are let in again: a Ctrl-C that waited must find what close() is to end.
            self._pid, self._pipe, self._result = pid, read_end, None
            self._deadline_s = time.monotonic() + self._limit_s
        except OSError:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        os.set_blocking(read_end, False)
        with contextlib.suppress(OSError):  # the child does the same: whichever comes first
            os.setpgid(pid, pid)

    def _reap(self, kill: bool = False) -> bool:
        """Whether the child is gone; ``kill`` ends it and all that it started."""
        if self._pid is None:
            return True
        if kill:
            self._kill()
        try:
            # Seen but not yet reaped, it keeps its id: what it started can still be addressed by it.
            ended = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return False
            self._kill()
            os.waitpid(self._pid, 0)
        except ChildProcessError:  # someone else's SIGCHLD handler has reaped it
            pass
        self._pid = None
        return True

    def _kill(self) -> None:
        assert self._pid is not None
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(self._pid, signal.SIGKILL)

    def _read_result(self) -> float | str | None:
        """What the child said; None when it said nothing."""
        assert self._pipe is not None
        try:
            message = os.read(self._pipe, _MAX_MESSAGE_BYTES).decode("utf-8", "replace")
        except BlockingIOError:  # it is silent, and still runs or something that it started does
            return None
        kind, _, text = message.partition(" ")
        if kind == "seconds":
            return float(text)
        return f"not measured: {text}" if text else None

    def _close_pipe(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None


def _refusal(loader: Any) -> str | None:
    """Why a loader cannot be measured in a child; None when it can."""
    if not sys.platform.startswith("linux"):
        return f"a process cannot be forked safely on {sys.platform}"
    if type(loader) is not DataLoader:
        return f"{type(loader).__qualname__} is not a plain torch DataLoader"
    if loader.num_workers == 0:
        return "the loader has no workers: its own fetches are that cost"
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset):
        return "the dataset is an IterableDataset: samples cannot be taken by index"
    if type(loader.batch_sampler) is not BatchSampler or loader.batch_size is None:
        return "batch_size is None: the user's own (batch) sampler decides what a batch is"
    try:
        n_samples = len(dataset)  # type: ignore[arg-type]
    except Exception as error:  # noqa: BLE001 - the user's code; its error is the reason
        return f"the dataset has no usable length: {_one_line(error)}"
    if n_samples <= 0:
        return "the dataset is empty"
    if _holds_device_tensors(dataset):
        return "the dataset holds tensors on a device, which a forked process cannot use"
    return None


def _holds_device_tensors(dataset: Any, depth: int = 3) -> bool:
    """A shallow look: attributes, the first items of containers in them, and wrapped datasets."""
    attributes = vars(dataset).values() if hasattr(dataset, "__dict__") else ()
    for value in attributes:
        if any(isinstance(item, torch.Tensor) and item.device.type != "cpu" for item in _first_items(value)):
            return True
        is_wrapped_dataset = callable(getattr(type(value), "__getitem__", None)) and hasattr(value, "__dict__")
        if depth and is_wrapped_dataset and _holds_device_tensors(value, depth - 1):
            return True
    return False


def _first_items(value: Any, n_items: int = 16) -> Iterable[Any]:
    if type(value) in (list, tuple):
        return value[:n_items]  # type: ignore[no-any-return]
    if type(value) is dict:
        return [item for item, _ in zip(value.values(), range(n_items), strict=False)]
    return (value,)


def _copies_dataset(loader: DataLoader[Any]) -> bool:
    """Whether the loader's workers get a pickled copy of the dataset instead of being forked with it."""
    # allow_none: asking plainly would fix the default for good, and a later set_start_method would raise.
    context = loader.multiprocessing_context or multiprocessing
    method = context.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    return bool(method != "fork")


# -- in the child -----------------------------------------------------------------------------------------------------


def _run_child(pipe: int, loader: DataLoader[Any], limit_s: float) -> NoReturn:
    """Measures, says so in one write, and ends without running anything that is the parent's to run."""
    message = ""
    try:
        _leave_parent_alone(limit_s)
        message = f"seconds {_median_batch_s(loader)!r}"
    except BaseException as error:  # noqa: BLE001 - even SystemExit must not unwind the parent's stack; it is reported
        message = f"error making a batch raised {_one_line(error)}"
    finally:
        try:
            os.write(pipe, message.encode("utf-8", "replace")[:_MAX_MESSAGE_BYTES])
        finally:
            os._exit(0)


def _leave_parent_alone(limit_s: float) -> None:
    """Cuts the child off from the parent's group, signals, streams, logs and garbage, and limits its life."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    signal.set_wakeup_fd(-1)
    for each in _CHILD_SIGNALS:
        signal.signal(each, signal.SIG_IGN if each == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _CHILD_SIGNALS)
    # Should the parent die or never ask again: the kernel ends the child a little after the parent would.
    signal.setitimer(signal.ITIMER_REAL, limit_s + 1.0)
    # Collecting would run finalizers of the parent's objects: flush its files, close its connections.
    gc.disable()
    gc.freeze()
    faulthandler.disable()
    logging.disable(logging.CRITICAL)
    _PARENTS_STREAMS.extend((sys.stdin, sys.stdout, sys.stderr))
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 - they live as long as the child
    sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    # As torch's own workers do; a pool of threads does not survive a fork.
    torch.set_num_threads(1)


def _median_batch_s(loader: DataLoader[Any]) -> float:
    dataset, collate = loader.dataset, loader.collate_fn
    if _copies_dataset(loader):
        dataset, collate = pickle.loads(pickle.dumps((dataset, collate)))
    fetch_many = getattr(dataset, "__getitems__", None)  # as torch's own fetcher
    n_samples: int = len(dataset)  # type: ignore[arg-type]
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


def _one_line(error: BaseException) -> str:
    """The error's type and message; safe where its own ``__str__`` raises."""
    return "".join(traceback.format_exception_only(type(error), error)).strip().replace("\n", " ")
