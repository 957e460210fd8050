"""Separate threads for replays, and settings of torch that belong to a thread.

Each thread has its own number of OpenMP threads, number of MKL threads and flushing of denormal numbers, and its own
OpenMP workers, which inherit them. In a new thread they change without affecting the training;
``torch.set_num_threads`` would leave MKL's dynamic mode off for good.
"""

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch

from lightning_perf.cgroups import affine_cores
from lightning_perf.interrupts import Latch

from .compare import Item, Stopwatch

_LIBRARIES = ("libtorch_cpu.so", "libtorch_cpu.dylib", "torch_cpu.dll")


def torch_library() -> ctypes.CDLL | None:
    """Return torch's library for the CPU; None if it is not found."""
    folder = Path(torch.__file__).parent / "lib"
    path = next((folder / name for name in _LIBRARIES if (folder / name).exists()), None)
    return ctypes.CDLL(str(path)) if path is not None else None


@cache
def _setters() -> tuple[Callable[[int], Any], ...]:
    """Return functions that set the calling thread's number of threads; empty if they are not found in torch."""
    try:
        library = torch_library()
        openmp = getattr(library, "omp_set_num_threads", None)
        mkl = getattr(library, "MKL_Set_Num_Threads_Local", None)
    except OSError:
        return ()
    if openmp is None or (mkl is None and has_mkl()):
        return ()
    return (openmp,) if mkl is None else (openmp, mkl)


def has_mkl() -> bool:
    """Return whether torch computes with MKL."""
    return bool(torch.backends.mkl.is_available())  # type: ignore[no-untyped-call]


def can_set_threads_locally() -> bool:
    """Return whether one thread's number of OpenMP threads can be changed alone."""
    return bool(_setters()) and "OpenMP" in torch.__config__.parallel_info().split("ATen parallel backend:")[-1]


@contextmanager
def local_threads(n_threads: int) -> Iterator[None]:
    """Let operators called by this thread use ``n_threads`` threads. Not restored: the thread ends with the replay."""
    torch.get_num_threads()  # torch sets the number at the first call in a thread
    for setter in _setters():
        setter(n_threads)
    if torch.get_num_threads() != n_threads:
        raise ValueError(f"torch uses {torch.get_num_threads()} threads where {n_threads} were set")
    yield


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Flush denormal numbers to zero in this thread and its OpenMP workers. Not restored, as ``local_threads``."""
    if not torch.set_flush_denormal(True):
        raise ValueError("this CPU cannot flush denormal numbers")
    yield


def _require_threads(n: int) -> None:
    """Raise ValueError unless ``n`` threads can be started: OpenMP ends the process if it cannot start its own."""
    gate, started = Latch(), list[threading.Thread]()
    try:
        for _ in range(n):
            thread = threading.Thread(target=gate.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError as error:
        raise ValueError(f"only {len(started)} more threads can be started, and {n} are needed") from error
    finally:
        gate.set()
        for thread in started:
            thread.join()


@contextmanager
def own_threads(
    around: Callable[[], AbstractContextManager[Any]], treated: Callable[[], AbstractContextManager[Any]]
) -> Iterator[Callable[[Item], Item]]:
    """Yield a function that returns an item which runs in two new threads: one for each side of the comparison.

    Each thread runs in a context from ``around``, the one with the treatment also in a context from ``treated``.
    """
    _require_threads(2 * max(torch.get_num_threads(), len(affine_cores())))
    threads: dict[bool, Worker] = {}
    with ExitStack() as undo:
        for is_treated, scopes in ((False, (around,)), (True, (around, treated))):
            threads[is_treated] = thread = undo.enter_context(Worker())
            inside = ExitStack()
            undo.callback(thread.call, inside.close)
            # Sets the training's number: a new thread's OpenMP has the default one until then, and MKL uses that.
            thread.call(torch.get_num_threads)
            for scope in scopes:
                thread.call(partial(inside.enter_context, scope()))
        yield partial(_ThreadItem, threads)


class Worker:
    """A thread that calls functions, one by one.

    If a signal handler raises in the thread that waits, a ``ThreadPoolExecutor`` may stay locked and never end;
    ``SimpleQueue`` cannot, because its methods are C code.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], SimpleQueue[Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(
            target=_answer_each, args=(self._calls,), name="lightning-perf-replay", daemon=True
        )
        self._thread.start()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *exception: object) -> None:
        self._calls.put(None)
        self._thread.join()

    def call(self, function: Callable[[], Any]) -> Any:
        """Call a function in the thread; return its result, or raise its error."""
        answers: SimpleQueue[Any] = SimpleQueue()
        self._calls.put((function, answers))
        result, error = answers.get()
        if error is None:
            return result
        try:
            raise error
        finally:
            del error  # it refers to this frame


def _answer_each(calls: SimpleQueue[tuple[Callable[[], Any], SimpleQueue[Any]] | None]) -> None:
    while (call := calls.get()) is not None:
        function, answers = call
        try:
            answers.put((function(), None))
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            answers.put((None, error))
        del call, function, answers


class _ThreadItem:
    def __init__(self, threads: dict[bool, Worker], item: Item) -> None:
        self.weight, self.treated_weight = item.weight, item.treated_weight
        self._item, self._threads = item, threads

    def run(self, is_treated: bool, watch: Stopwatch) -> list[tuple[Any, Any]]:
        marks: list[tuple[Any, Any]] = self._threads[is_treated].call(partial(self._item.run, is_treated, watch))
        return marks
