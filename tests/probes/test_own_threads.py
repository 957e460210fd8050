"""Threads of PerfDoctor's leave garbage collections to the training's."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lightning_perf.probes import own_threads
from lightning_perf.probes.host_lines import LineSampler
from lightning_perf.probes.own_threads import StopFlag, hold_collections, release_collections, usual_thresholds

from .test_host_lines import Clock, Loop, run_by_lightning
from .test_telemetry import Scripted

N = 3
USUAL = (300, 10, 10)
RAISED = (300 + own_threads._MARGIN, 10, 10)


def allocate() -> None:
    """Allocate more containers than a collection waits for."""
    _ = [set() for _ in range(400)]  # type: ignore[var-annotated]


@pytest.fixture
def collecting_threads() -> Iterator[list[str]]:
    """The names of the threads in which collections begin."""
    seen: list[str] = []

    def begins(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            seen.append(threading.current_thread().name)

    usual = gc.get_threshold()
    gc.callbacks.append(begins)
    gc.set_threshold(*USUAL)
    gc.collect()
    yield seen
    gc.callbacks.remove(begins)
    gc.set_threshold(*usual)


def in_thread(function: Callable[[], Any]) -> None:
    thread = threading.Thread(target=function, name="ours")
    thread.start()
    thread.join()


def test_no_collection_begins_in_the_samplers_thread_when_it_reads_stacks(collecting_threads):
    clock = Clock()

    def frames() -> dict[int, Any]:
        allocate()
        return sys._current_frames()

    own = LineSampler(Loop(), now_ns=clock, frames=frames, sleep=clock.sleep)  # type: ignore[arg-type]

    def sample() -> None:
        for _ in range(N):
            assert own._sample()

    run_by_lightning(lambda: in_thread(sample))
    assert own._n == N
    assert "ours" not in collecting_threads
    assert gc.get_threshold() == USUAL


def test_no_collection_begins_in_the_telemetrys_thread_when_it_samples(collecting_threads, monkeypatch):
    run = Scripted(hz=10.0)
    monkeypatch.setattr(run.probe, "sample", allocate)
    monkeypatch.setattr(run.probe, "_stopping", Rounds(N))
    in_thread(run.probe._run)
    assert "ours" not in collecting_threads
    assert gc.get_threshold() == USUAL


class Rounds:
    """A stop flag that is set after some waits."""

    def __init__(self, n: int) -> None:
        self.n = n

    def wait(self, seconds: float) -> bool:
        self.n -= 1
        return self.n < 0


def test_thresholds_are_restored_when_the_last_of_several_threads_is_done(collecting_threads):
    hold_collections()
    hold_collections()
    assert gc.get_threshold() == RAISED
    assert usual_thresholds() == USUAL
    release_collections()
    assert gc.get_threshold() == RAISED
    release_collections()
    assert gc.get_threshold() == usual_thresholds() == USUAL


@pytest.mark.parametrize("own", [(0, 10, 10), (300, 7, 3)])
def test_thresholds_of_the_user_stay_when_set_meanwhile(own, collecting_threads):
    hold_collections()
    gc.set_threshold(*own)
    release_collections()
    assert gc.get_threshold() == own


def test_collections_stay_off_when_the_threshold_is_zero(collecting_threads):
    gc.set_threshold(0, 10, 10)
    hold_collections()
    assert gc.get_threshold() == (0, 10, 10)
    release_collections()
    assert gc.get_threshold() == (0, 10, 10)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_forked_process_has_the_usual_thresholds_when_forked_in_the_middle_of_a_sample(collecting_threads):
    hold_collections()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if gc.get_threshold() == USUAL else 1)
    release_collections()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_flag_ends_waiting_when_set_and_stays_set():
    flag = StopFlag()
    assert not flag.wait(0.0)
    thread = threading.Thread(target=flag.wait, args=(60.0,))
    thread.start()
    flag.set()
    flag.set()
    thread.join(30)
    assert not thread.is_alive()
    assert flag.is_set()
    assert flag.wait(60.0)
