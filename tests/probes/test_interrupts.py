"""Errors raised by a signal handler during PerfDoctor code propagate into the training."""

from __future__ import annotations

import ctypes
import gc
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from lightning.pytorch.trainer.connectors.signal_connector import _HandlersCompose

from lightning_perf import interrupts
from lightning_perf.interrupts import Latch, raise_if_from_signal, suppress
from lightning_perf.probes import plain
from lightning_perf.probes.replay.threads import Worker
from lightning_perf.probes.telemetry.host import HostReader
from lightning_perf.probes.telemetry.pauses import GarbagePauses
from lightning_perf.seams import Undos, complete

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGUSR2"), reason="needs POSIX signals")


class Preempted(Exception):
    """What the user's handler raises."""


def raise_preempted(*_: Any) -> None:
    raise Preempted


class Handler:
    """A handler with state."""

    def __call__(self, *_: Any) -> None:
        raise Preempted

    def method(self, *_: Any) -> None:
        raise Preempted


HANDLERS: dict[str, Callable[..., None]] = {
    "function": raise_preempted,
    "method": Handler().method,
    "partial": partial(partial(raise_preempted, "why"), "more"),
    "callable object": Handler(),
    "method of a callable object": Handler().__call__,
    "composed by Lightning": _HandlersCompose([raise_preempted]),
}


@pytest.fixture
def restored_handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR2)
    yield
    signal.signal(signal.SIGUSR2, before)


@pytest.mark.parametrize("kind", HANDLERS)
def test_error_is_raised_again_when_a_signal_handler_raised_it(kind: str, restored_handler: None) -> None:
    signal.signal(signal.SIGUSR2, HANDLERS[kind])
    with pytest.raises(Preempted) as raised:
        signal.raise_signal(signal.SIGUSR2)
    with pytest.raises(Preempted):
        raise_if_from_signal(raised.value)


def test_error_is_raised_again_when_the_handler_was_reset_before_it_raised(restored_handler: None) -> None:
    def reset_and_raise(number: int, frame: Any) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise_preempted()

    signal.signal(signal.SIGUSR2, reset_and_raise)
    with pytest.raises(Preempted) as raised:
        signal.raise_signal(signal.SIGUSR2)
    with pytest.raises(Preempted):
        raise_if_from_signal(raised.value)


def test_error_passes_when_a_signal_handler_raises_where_its_type_is_suppressed(restored_handler: None) -> None:
    signal.signal(signal.SIGUSR2, raise_preempted)
    with suppress(Preempted):
        raise Preempted
    with pytest.raises(Preempted), suppress(Preempted):
        signal.raise_signal(signal.SIGUSR2)


def test_error_is_kept_when_a_function_is_given_a_number_and_another_frame() -> None:
    def fails(number: int, frame: Any) -> None:
        raise Preempted

    with pytest.raises(Preempted) as raised:
        fails(signal.SIGUSR2, sys._getframe().f_back)
    raise_if_from_signal(raised.value)


def test_error_of_a_signal_handler_passes_when_disks_are_read(
    monkeypatch: pytest.MonkeyPatch, restored_handler: None
) -> None:
    def raise_runtime_error(*_: Any) -> None:  # of the type that torch's handler of SIGCHLD raises
        raise RuntimeError("a worker was killed")

    reader = HostReader()
    signal.signal(signal.SIGUSR2, raise_runtime_error)
    monkeypatch.setattr(psutil, "disk_io_counters", lambda **_: signal.raise_signal(signal.SIGUSR2))
    with pytest.raises(RuntimeError, match="a worker was killed"):
        reader.read(0.0)


def test_undo_is_repeated_when_a_signal_handler_raises_within_it(restored_handler: None) -> None:
    interruptions = [signal.SIGUSR2]
    done = []

    def undo() -> None:
        while interruptions:
            signal.raise_signal(interruptions.pop())
        done.append(True)

    signal.signal(signal.SIGUSR2, raise_preempted)
    undos = Undos()
    undos.note(undo)
    with pytest.raises(Preempted):
        complete(undos.close)
    assert done == [True]


def test_error_is_kept_when_no_signal_handler_raised_it(restored_handler: None) -> None:
    signal.signal(signal.SIGUSR2, Handler().method)
    with pytest.raises(Preempted) as raised:
        raise_preempted()
    raise_if_from_signal(raised.value)


def test_signal_handlers_are_not_listed_when_the_catching_frame_itself_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    # A sampled step reads about a thousand attributes that are missing; listing the handlers takes half a millisecond.
    monkeypatch.setattr(interrupts, "_handlers", lambda: pytest.fail("the handlers were listed"))
    assert plain.attributes(1) == {}


@pytest.fixture
def pauses() -> Iterator[GarbagePauses]:
    """Time collections, without callbacks of others, e.g. of hypothesis: the signal would interrupt those.

    Garbage of earlier tests is collected before: the signal could interrupt a callback of a weak reference to it.
    """
    gc.collect()
    before, others = sys.unraisablehook, gc.callbacks[:]
    pauses = GarbagePauses(time.perf_counter_ns)
    gc.disable()
    gc.callbacks.clear()
    pauses.start()
    try:
        yield pauses
    finally:
        pauses.close()
        gc.callbacks[:] = others
        gc.enable()
    assert sys.unraisablehook is before


@pytest.mark.parametrize("kind", [Preempted, KeyboardInterrupt, SystemExit])
def test_error_reaches_the_training_when_the_signal_came_during_a_collection(
    kind: type[BaseException], restored_handler: None, pauses: GarbagePauses
) -> None:
    raised = kind("why")

    def raise_it(*_: Any) -> None:
        gc.callbacks.remove(interrupt)
        raise raised

    signal.signal(signal.SIGUSR2, raise_it)
    # A function in C: one in Python would run the handler itself.
    raise_signal = ctypes.PyDLL(None)["raise"]
    raise_signal.argtypes = [ctypes.c_int, ctypes.py_object, ctypes.py_object]
    interrupt = partial(raise_signal, signal.SIGUSR2)
    gc.callbacks.insert(0, interrupt)

    with pytest.raises(kind) as caught:
        gc.collect()
    assert caught.value is raised
    assert interrupts.is_from_signal(raised)


def test_own_errors_in_collections_are_only_printed(monkeypatch: pytest.MonkeyPatch, pauses: GarbagePauses) -> None:
    printed = []
    monkeypatch.setattr(pauses, "_previous_hook", lambda lost: printed.append(lost.exc_type))
    monkeypatch.setattr(pauses, "_requesting", lambda _: 1 / 0)
    gc.collect()
    monkeypatch.undo()
    assert printed == [ZeroDivisionError]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_hook_for_unraisable_errors_is_restored_in_whatever_order_runs_end(order: tuple[int, int]) -> None:
    before = sys.unraisablehook
    runs = [GarbagePauses(time.perf_counter_ns) for _ in range(2)]
    for run in runs:
        run.start()
    for place in order:
        runs[place].close()
        runs[place].close()
    assert sys.unraisablehook is before


def test_hook_that_someone_else_set_stays_when_a_run_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    run = GarbagePauses(time.perf_counter_ns)
    run.start()
    ours = sys.unraisablehook
    others = lambda one: ours(one)  # noqa: E731
    sys.unraisablehook = others
    run.close()
    assert sys.unraisablehook is others
    error = SimpleNamespace(exc_value=ValueError(), object=None, err_msg=None)
    others(error)
    assert lost == [error]


def interrupted_after(n_opcodes: int, function: Callable[[], object]) -> bool:
    """Call a function, and raise within it as a signal handler would; return whether it took that many opcodes."""
    n_left = n_opcodes

    def traced(frame: Any, event: str, _: object) -> Any:
        nonlocal n_left
        frame.f_trace_opcodes = True
        if event == "opcode":
            n_left -= 1
            if n_left < 0:
                raise Preempted
        return traced

    previous = sys.gettrace()
    sys.settrace(traced)
    try:
        function()
    except Preempted:
        return True
    finally:
        sys.settrace(previous)
    return False


@pytest.mark.parametrize("method", ["set", "wait"])
def test_latch_can_be_set_after_any_interrupt(method: str) -> None:
    n_opcodes, is_interrupted = 0, True
    while is_interrupted:
        latch = Latch()
        is_interrupted = interrupted_after(n_opcodes, latch.set if method == "set" else partial(latch.wait, 0.0))
        waiting = [threading.Thread(target=latch.wait, args=(60.0,), daemon=True) for _ in range(2)]
        again = threading.Thread(target=latch.set, daemon=True)
        for thread in (*waiting, again):
            thread.start()
        for thread in (again, *waiting):
            thread.join(30.0)
            assert not thread.is_alive(), f"{method}, interrupted after {n_opcodes} opcodes"
        assert latch.is_set()
        assert latch.wait(0.0)
        n_opcodes += 1
    assert n_opcodes > 5


def test_latch_is_not_set_when_the_time_is_up() -> None:
    latch = Latch()
    assert not latch.wait(0.01)
    assert not latch.is_set()


def test_latch_waits_when_the_time_is_longer_than_the_platform_allows() -> None:
    latch = Latch()
    threading.Timer(0.01, latch.set).start()
    assert latch.wait(1e30)


def test_thread_of_replays_ends_after_any_interrupt() -> None:
    n_opcodes, is_interrupted = 0, True
    while is_interrupted:
        worker = Worker()
        is_interrupted = interrupted_after(n_opcodes, partial(worker.call, gc.isenabled))
        ending = threading.Thread(target=worker.__exit__, daemon=True)
        ending.start()
        ending.join(30.0)
        assert not ending.is_alive(), f"interrupted after {n_opcodes} opcodes"
        n_opcodes += 1
    assert n_opcodes > 5


def test_thread_of_replays_returns_results_and_errors() -> None:
    with Worker() as worker:
        assert worker.call(threading.get_ident) != threading.get_ident()
        with pytest.raises(Preempted):
            worker.call(raise_preempted)
        assert worker.call(gc.isenabled) == gc.isenabled()
