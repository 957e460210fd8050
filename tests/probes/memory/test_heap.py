"""Allocated bytes of the C heap."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch

from lightning_perf.probes.memory import growth
from lightning_perf.probes.memory.growth import FREE_NS, GrowthWatch
from lightning_perf.probes.memory.host_memory import _Mallinfo2, c_heap

pytestmark = pytest.mark.usefixtures("frozen_objects")

has_mallinfo2 = pytest.mark.skipif(c_heap()[0] is None, reason="the C library does not report it")


@has_mallinfo2
@pytest.mark.parametrize("n_bytes", [50_000, 64 * 2**20])
def test_heap_in_use_rises_by_what_is_allocated_and_falls_when_it_is_freed(n_bytes: int) -> None:
    heap, reason = c_heap()
    assert heap is not None
    assert reason == ""
    gc.collect()
    gc.disable()  # objects of earlier tests may be freed in the middle of it
    try:
        assert_follows(heap.read, n_bytes)
    finally:
        gc.enable()


def assert_follows(read: Callable[[], int], n_bytes: int) -> None:
    before = read()
    blocks = [torch.empty(n_bytes, dtype=torch.uint8) for _ in range(20)]
    assert read() - before == pytest.approx(20 * n_bytes, rel=0.02)
    del blocks
    assert read() - before == pytest.approx(0, abs=0.4 * n_bytes)


class Function:
    """A C function of the given figures."""

    def __init__(self, *figures: tuple[int, int]) -> None:
        self.figures = list(figures)

    def __call__(self) -> _Mallinfo2:
        on_heap, mapped = self.figures.pop(0) if len(self.figures) > 1 else self.figures[0]
        return _Mallinfo2(uordblks=on_heap, hblkhd=mapped, fordblks=10**9, arena=10**9)


def test_blocks_with_a_mapping_of_their_own_are_counted_too() -> None:
    heap, _ = c_heap(lambda: Function((10, 5), (2**20 + 10, 5), (7, 2**40)))
    assert heap is not None
    assert heap.read() == 2**40 + 7
    assert heap.free_bytes == 10**9


def test_heap_is_not_read_when_tensors_are_not_on_it() -> None:
    heap, reason = c_heap(lambda: Function((123_456, 0)))
    assert heap is None
    assert "another allocator" in reason


@pytest.mark.parametrize("error", [AttributeError("symbol not found"), OSError("no such file"), TypeError("not None")])
def test_heap_is_not_read_when_the_c_library_does_not_report_it(error: Exception) -> None:
    def find() -> Any:
        raise error

    heap, reason = c_heap(find)
    assert heap is None
    assert "mallinfo2" in reason


@has_mallinfo2
def test_structure_is_that_of_the_c_library() -> None:
    assert ctypes.sizeof(_Mallinfo2) == 10 * ctypes.sizeof(ctypes.c_size_t)


class SlowPlace:
    """A place that is slow to read."""

    def __init__(self, cost_ns: int) -> None:
        self.cost_ns, self.now_ns, self.n_reads = cost_ns, 0, 0

    def read(self) -> int:
        self.now_ns += self.cost_ns
        self.n_reads += 1
        return 10**8


@pytest.mark.parametrize(("cost_us", "n_reads"), [(1, 400), (500, 100), (40_000, 2)])
def test_slow_place_is_read_rarely_and_others_as_often_as_before(cost_us: int, n_reads: int) -> None:
    slow, cheap = SlowPlace(1000 * cost_us), SlowPlace(0)
    watch = GrowthWatch({"heap": slow.read, "host": cheap.read}, dict, lambda: slow.now_ns, lambda f: f())
    watch._has_snapshot_of_attributes = True
    n_steps = 5000
    for step in range(n_steps):
        if step >= watch.next_step:
            watch.observe(step)
    assert slow.n_reads <= n_reads
    assert slow.now_ns <= FREE_NS + growth.COST_NS_PER_STEP * n_steps + slow.cost_ns
    assert cheap.n_reads >= 50
    assert watch.one_time_ns <= FREE_NS + slow.cost_ns
    assert (watch.one_time_ns > 0) == (cost_us >= 50)


def test_readings_are_spread_over_the_first_steps_when_they_are_expensive() -> None:
    slow = SlowPlace(2_000_000)
    watch = GrowthWatch({"heap": slow.read}, dict, lambda: slow.now_ns, lambda f: f())
    watch._has_snapshot_of_attributes = True
    for step in range(200):
        if step >= watch.next_step:
            watch.observe(step)
    steps = watch.readings["heap"].steps
    assert len(steps) >= 18
    assert max(b - a for a, b in pairwise(steps)) <= 15
    assert steps[-1] >= 185
