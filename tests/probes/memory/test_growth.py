"""Readings over the steps, and the comparison of the heap that names what grows."""

from __future__ import annotations

import gc
import sys
import threading
import tracemalloc
from collections import deque
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lightning_perf.probes.atomic_reads import live_objects, n_live_objects
from lightning_perf.probes.memory import growth, heap_diff
from lightning_perf.probes.memory.growth import MAX_READINGS, GrowthWatch, Readings, is_growing
from lightning_perf.probes.memory.heap_diff import HeapDiff, _suspect, roots_of

pytestmark = pytest.mark.usefixtures("frozen_objects")


class Model(nn.Module):
    """Keeps tensors in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.head = nn.Linear(4, 4)
        self.losses: list[Any] = []
        self.history: dict[str, list[Any]] = {"loss": []}
        self.numbers: list[float] = []
        self.window: deque[Any] = deque(maxlen=4)
        self.total = torch.zeros(())

    def loss(self) -> torch.Tensor:
        return self.layer(torch.ones(1, 4)).sum()


class Keeper:
    """A callback that keeps tensors."""

    def __init__(self) -> None:
        self.kept: list[Any] = []


def grown(model: Model, keep: Any, is_wide: bool = True, callbacks: Any = (), n: int = 30) -> Any:
    roots = roots_of(model, callbacks, [])
    for _ in range(5):
        keep()
    heap_diff = HeapDiff(roots, 5, is_wide, limit_s=60.0)
    for _ in range(n):
        keep()
    return heap_diff.grown(roots, 5 + n)


@pytest.mark.parametrize("is_wide", [True, False])
def test_heap_diff_names_the_attribute_when_losses_are_kept_with_their_graphs(is_wide: bool) -> None:
    model = Model()
    (suspect,) = grown(model, lambda: model.losses.append(model.loss()), is_wide)
    assert (suspect.name, suspect.kind, suspect.n_items, suspect.n_with_graph) == ("Model.losses", "list", 35, 35)
    assert suspect.items_per_step == 1.0


@pytest.mark.parametrize("is_wide", [True, False])
def test_heap_diff_names_the_path_when_the_list_is_in_a_dict(is_wide: bool) -> None:
    model = Model()
    (suspect,) = grown(model, lambda: model.history["loss"].append({"x": torch.ones(25)}), is_wide)
    assert suspect.name == "Model.history['loss']"
    assert suspect.tensor_bytes == 35 * 100
    assert suspect.n_with_graph == 0


@pytest.mark.parametrize("is_wide", [True, False])
def test_heap_diff_names_the_second_callback_of_a_class_when_that_one_keeps(is_wide: bool) -> None:
    callbacks = [Keeper(), Keeper()]
    (suspect,) = grown(Model(), lambda: callbacks[1].kept.append(torch.ones(25)), is_wide, callbacks)
    assert (suspect.name, suspect.n_items) == ("Keeper[1].kept", 35)


def test_heap_diff_names_the_callback_when_it_is_the_one_that_keeps() -> None:
    keeper = Keeper()
    (suspect,) = grown(Model(), lambda: keeper.kept.append(torch.ones(2)), callbacks=[keeper])
    assert suspect.name == "Keeper.kept"


def test_heap_diff_names_the_submodule_when_it_keeps() -> None:
    model = Model()
    model.head.cache = []
    (suspect,) = grown(model, lambda: model.head.cache.append(torch.ones(2)))
    assert suspect.name == "Model.head.cache"


def test_heap_diff_names_the_module_when_a_global_list_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "planted", ModuleType("planted"))
    exec("KEPT = []", vars(sys.modules["planted"]))  # a module of its own: that of the tests is frozen
    (suspect,) = grown(Model(), lambda: sys.modules["planted"].KEPT.append(torch.ones(2)))
    assert suspect.name == "planted.KEPT"


def test_heap_diff_names_the_function_when_a_closed_over_list_grows() -> None:
    def make() -> Any:
        inner: list[Any] = []

        def keep() -> None:
            inner.append(torch.ones(2))

        return keep

    (suspect,) = grown(Model(), make())
    assert suspect.name.startswith("inner (a variable that ")


def test_heap_diff_names_the_tensor_when_its_graph_grows() -> None:
    model = Model()

    def keep() -> None:
        model.total = model.total + model.loss()

    (suspect,) = grown(model, keep, is_wide=False)
    assert (suspect.name, suspect.kind) == ("Model.total", "graph")
    assert suspect.items_per_step >= 1


@pytest.mark.parametrize("attribute", ["numbers", "window"])
def test_heap_diff_reports_nothing_when_numbers_or_a_bounded_window_are_kept(attribute: str) -> None:
    model = Model()
    assert grown(model, lambda: getattr(model, attribute).append(1.0 if attribute == "numbers" else model.loss())) == ()


@pytest.mark.parametrize(
    ("element", "n_bytes"),
    [
        (lambda: np.ones(25, np.float32), 100),
        (lambda: (0, np.ones(25, np.float32)), 100),
        (lambda: {"loss": 1.0, "predictions": np.ones((5, 10), np.float32)[:, :5]}, 200),  # a view keeps its base
        (lambda: torch.ones(25).numpy(), 100),
    ],
)
def test_heap_diff_names_the_list_when_arrays_are_kept(element: Any, n_bytes: int) -> None:
    model = Model()
    (suspect,) = grown(model, lambda: model.losses.append(element()))
    assert (suspect.name, suspect.n_with_graph) == ("Model.losses", 0)
    assert suspect.tensor_bytes == 35 * n_bytes


def test_heap_diff_holds_on_to_nothing_that_it_saw() -> None:
    class Marked(list):  # type: ignore[type-arg]
        pass

    model = Model()
    heap_diff = HeapDiff(roots_of(model, [], []), 1)
    before = len(gc.get_referrers(model.losses))
    del heap_diff
    assert len(gc.get_referrers(model.losses)) == before


def test_search_for_a_name_ends_when_thousands_of_objects_hold_the_container(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, shared = [0.0], []
    holders = [{"shared": shared} for _ in range(1000)]

    def referrers(*objects: Any) -> list[Any]:
        now_s[0] += 0.1
        return gc.get_referrers(*objects)

    monkeypatch.setattr(heap_diff, "gc", SimpleNamespace(get_referrers=referrers))
    monkeypatch.setattr(heap_diff, "time", SimpleNamespace(perf_counter=lambda: now_s[0]))
    first = HeapDiff({}, 5)
    shared += [torch.ones(2) for _ in range(40)]
    before_s = now_s[0]
    (suspect,) = first.grown({}, 45)
    assert suspect.name == "a list that no attribute or module names"
    assert now_s[0] - before_s < 2.0
    assert len(holders) == 1000


@pytest.mark.parametrize("kind", [list, deque, set, dict.fromkeys])
def test_large_container_is_not_copied_to_inspect_its_newest_elements(kind: Any) -> None:
    container = kind(range(500_000))
    tracemalloc.start()
    try:
        assert _suspect(container, n_added=40, n_steps=30) is None
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_container_that_another_thread_emptied_meanwhile_is_no_suspect() -> None:
    assert _suspect(deque(), n_added=40, n_steps=30) is None


# -- the watch ------------------------------------------------------------


class NoHeapDiff:
    """Replaces ``HeapDiff`` in tests of trends: comparing all of pytest's objects takes a second."""

    def __init__(self, roots: dict[str, Any], step: int, is_wide: bool = True) -> None:
        self.step, self.is_complete, self.own_s = step, True, 0.0

    def grown(self, roots: dict[str, Any], step: int) -> tuple[Any, ...]:
        return ()


@pytest.fixture
def without_heap_diff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "HeapDiff", NoHeapDiff)


def watched(values: Any, n_steps: int = 200, roots: dict[str, Any] | None = None) -> GrowthWatch:
    """Return a watch of synthetic readings ``values(step)``."""
    now = {"step": 0}
    watch = GrowthWatch({"host": lambda: int(values(now["step"]))}, lambda: roots or {}, lambda: 0, lambda f: f())
    for step in range(n_steps):
        now["step"] = step
        if step >= watch.next_step:
            watch.observe(step)
    watch.end(n_steps)
    return watch


def grows(watch: GrowthWatch) -> bool:
    fitted = watch.readings["host"].trend()
    return fitted is not None and is_growing(fitted[0])


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.usefixtures("without_heap_diff")
def test_leak_is_seen_within_200_steps_when_readings_are_noisy(seed: int) -> None:
    noise = np.random.default_rng(seed).normal(scale=2e6, size=200)
    assert grows(watched(lambda step: 4e8 + 300_000 * step + noise[step]))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.usefixtures("without_heap_diff")
def test_no_leak_is_reported_when_tensors_come_and_go(seed: int) -> None:
    rng = np.random.default_rng(seed)
    level = np.zeros(2000)
    held = 0.0
    for i in range(2000):  # half a MiB at random, and as much goes on average
        held += rng.uniform(0, 1e6) - 0.1 * held
        level[i] = held
    assert not grows(watched(lambda step: 4e8 + level[step]))
    assert not grows(watched(lambda step: 4e8 + level[step], n_steps=2000))


@pytest.mark.usefixtures("without_heap_diff")
def test_warm_up_is_not_a_leak_when_it_flattens() -> None:
    assert not grows(watched(lambda step: 4e8 + 2e6 * min(step, 60)))


@pytest.mark.usefixtures("without_heap_diff")
def test_late_leak_is_seen_when_the_beginning_was_flat() -> None:
    assert grows(watched(lambda step: 4e8 + 3e5 * max(0, step - 900), n_steps=2000))


@pytest.mark.usefixtures("without_heap_diff")
def test_memory_of_the_watch_stays_bounded_when_a_run_is_long() -> None:
    watch = watched(lambda step: 4e8, n_steps=50_000)
    readings = watch.readings["host"]
    assert len(readings.steps) <= MAX_READINGS
    assert readings.steps[-1] > 48_000
    assert watch.next_step - readings.steps[-1] >= 200


def test_heap_diff_names_what_grows_when_readings_grow() -> None:
    model = Model()

    def reading(step: int) -> float:
        model.losses += [torch.ones(100) for _ in range(5)]  # one for each step since the last reading
        return 4e8 + 1e6 * step

    watch = watched(reading, roots=roots_of(model, [], []))
    (record,) = watch.records()
    assert [s.name for s in record.suspects] == ["Model.losses"]
    assert "compared after steps" in record.census


def test_readings_halve_when_they_are_full() -> None:
    readings = Readings()
    thinned = [readings.add(i, i) for i in range(MAX_READINGS)]
    assert thinned == [False] * (MAX_READINGS - 1) + [True]
    assert readings.steps == list(range(0, MAX_READINGS, 2))


def test_nothing_is_read_for_the_snapshot_of_attributes() -> None:
    n_read = 0

    def read() -> int:
        nonlocal n_read
        n_read += 1
        return 2**30  # never grows

    model = Model()
    watch = GrowthWatch({"heap": read}, lambda: roots_of(model, (), []), lambda: 0, lambda do: do())
    n_observed = 0
    for step in range(1, 100):
        model.losses.append(model.loss())
        if step >= watch.next_step:
            watch.observe(step)
            n_observed += 1
    assert [suspect.name for suspect in watch.held_graphs] == ["Model.losses"]
    assert n_read == n_observed


def test_tuple_that_another_thread_fills_is_not_held_when_objects_are_listed() -> None:
    asked, listed = threading.Event(), threading.Event()

    def items() -> Iterator[int]:
        yield 1
        asked.set()
        listed.wait(10.0)

    filled: list[Any] = []
    thread = threading.Thread(target=lambda: filled.append(tuple(items())))
    thread.start()
    assert asked.wait(10.0)
    objects = live_objects()
    listed.set()
    thread.join()
    assert filled == [(1,)]
    assert any(one is filled for one in objects)
    assert n_live_objects() > len(objects)
