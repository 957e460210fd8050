from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_perf.probes import plain
from lightning_perf.probes.plain import size_reader
from lightning_perf.probes.timeline import stage as stage_module
from lightning_perf.probes.timeline.spans import Span, Timeline
from lightning_perf.probes.timeline.stage import StageTimer
from lightning_perf.records import StageTimes
from tests.fakes import FakeClock

BATCH = torch.zeros(4, 2)


class Loop:
    """Call a probe as Lightning's loop does, with a fake clock."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.timeline = Timeline(self.clock, self._fail)
        self.probe = StageTimer(self.timeline)
        self.fetching = Span(self.timeline, "data_wait")
        self.computing = Span(self.timeline, "forward")

    def _fail(self, error: Exception) -> None:
        raise AssertionError from error

    def epoch(self, index: int, boundary_s: float = 0.5) -> None:
        """Begin an epoch; the time since the last one is its boundary."""
        self.clock.advance(boundary_s)
        self.probe.epoch_begins(index)
        self.timeline.set_base("other")

    def end_epoch(self) -> None:
        self.probe.epoch_ends()
        self.timeline.set_base("epoch_boundary")

    def fetch(self, seconds: float) -> None:
        self.probe.fetch_begins()
        with self.fetching:
            self.clock.advance(seconds)
        self.probe.fetch_ends()

    def run(self, seconds: float, batch: Any = BATCH, rest_s: float = 0.0) -> None:
        self.probe.batch_begins(batch)
        with self.computing:
            self.clock.advance(seconds)
        self.probe.batch_ends(batch)
        self.clock.advance(rest_s)

    def step(self, fetch_s: float = 0.1, forward_s: float = 0.3, batch: Any = BATCH) -> None:
        self.fetch(fetch_s)
        self.run(forward_s, batch, rest_s=0.05)

    def times(self) -> StageTimes:
        return self.probe.stage_times()


def begun() -> Loop:
    """Return a loop in its first epoch."""
    loop = Loop()
    loop.epoch(0)
    return loop


def test_step_is_the_time_from_one_fetch_to_the_next() -> None:
    loop = begun()
    for _ in range(10):
        loop.step()
    times = loop.times()
    assert (times.n_steps, times.n_warmup_steps) == (9, 1)
    assert times.step_s.p50 == pytest.approx(0.45, rel=0.01)
    assert times.step_s.mean == pytest.approx(0.45)
    assert times.span_s == pytest.approx(9 * 0.45)
    assert {n: p.total_s for n, p in times.phases.items()} == pytest.approx(
        {"data_wait": 0.9, "forward": 2.7, "other": 0.45}
    )
    assert times.samples_per_s == pytest.approx(4 / 0.45)


@pytest.mark.parametrize("n_epochs", [40, 300])  # before and after the first aggregation
def test_steps_are_measured_when_each_epoch_has_one_batch(n_epochs: int) -> None:
    loop = Loop()
    for epoch in range(n_epochs):
        loop.epoch(epoch)
        loop.step(forward_s=3.0 if epoch == 0 else 0.3)
        loop.end_epoch()
    times = loop.times()
    n = n_epochs - 1
    assert (times.n_steps, times.n_warmup_steps) == (n, 1)
    assert times.step_s.mean == pytest.approx(0.35)  # no batch can be prefetched: fetching is between the steps
    assert {name: phase.total_s for name, phase in times.phases.items()} == pytest.approx(
        {"forward": 0.3 * n, "other": 0.05 * n, "epoch_boundary": 0.1 * n + 0.5 * (n - 1)}, rel=0.01
    )
    assert times.fetch.first_s[-1] == pytest.approx(0.1)


def test_warmup_is_left_out_when_the_first_steps_are_slow() -> None:
    loop = begun()
    for forward_s in (9.0, 5.0, 3.0, *[0.3] * 30):
        loop.step(forward_s=forward_s)
    times = loop.times()
    assert times.n_warmup_steps == 3
    assert times.n_steps == 30
    assert times.step_s.p99 < 0.5
    assert sum(loop.probe.first_step_ns) == pytest.approx(9.15e9)


def test_first_fetch_of_an_epoch_counts_as_its_boundary_beyond_a_usual_one() -> None:
    loop = Loop()
    for epoch in range(3):
        loop.epoch(epoch)
        loop.step(fetch_s=2.1)
        for _ in range(9):
            loop.step()
        loop.end_epoch()
    times = loop.times()
    assert times.n_steps == 27
    assert times.step_s.p99 == pytest.approx(0.45, rel=0.01)
    assert times.phases["data_wait"].total_s == pytest.approx(29 * 0.1)
    # Two boundaries of 0.5 s, and two first fetches of 2 s more than a usual one.
    assert times.phases["epoch_boundary"].total_s == pytest.approx(5.0)
    assert sum(p.total_s for p in times.phases.values()) == pytest.approx(times.span_s)
    assert times.fetch.first_s == pytest.approx((2.1, 2.1))


def test_both_fetches_belong_to_the_first_step_when_the_loader_is_read_one_ahead() -> None:
    loop = Loop()
    for epoch in range(3):
        loop.epoch(epoch)
        loop.fetch(2.1)  # starts the workers
        for _ in range(8):
            loop.step()
        loop.end_epoch()
    times = loop.times()
    epochs = loop.probe.epochs_so_far()
    assert [e.first_fetch_s for e in epochs] == [pytest.approx(2.2)] * 3
    assert times.phases["data_wait"].p95_s == pytest.approx(0.1, rel=0.01)
    assert times.phases["data_wait"].total_s == pytest.approx(23 * 0.1)
    assert times.phases["epoch_boundary"].total_s == pytest.approx(2 * (0.5 + 2.1))


def test_fetch_inside_a_step_begins_no_row_and_is_not_forward() -> None:
    loop = begun()
    for size in (4, 4, 4, 4, 4, 2):
        loop.probe.batch_begins(None if size == 4 else BATCH)  # at first none, later the last step's batch
        with loop.computing:
            loop.fetch(0.1)
            loop.clock.advance(0.3)
        loop.probe.batch_ends(torch.zeros(size, 2))
    times = loop.times()
    assert times.n_steps == 5
    assert times.phases["data_wait"].p50_s == pytest.approx(0.1, rel=0.01)
    assert times.phases["forward"].p50_s == pytest.approx(0.3, rel=0.01)
    assert times.samples_per_s == pytest.approx((4 * 4 + 2) / times.span_s)


def test_step_counts_as_none_when_it_was_skipped_or_broke_off() -> None:
    loop = begun()
    for _ in range(5):
        loop.step()
    loop.fetch(0.1)
    loop.probe.batch_begins(BATCH)
    loop.clock.advance(3)
    loop.end_epoch()
    assert loop.probe.n_steps == 5
    (epoch,) = loop.probe.epochs_so_far()
    assert epoch.n_steps == 5
    times = loop.times()
    assert times.n_steps == 4
    assert times.step_s.p99 < 0.5
    assert times.span_s == pytest.approx(4 * 0.45 + 3.1)  # the time itself is not lost


def test_batch_that_never_began_ends_nothing() -> None:
    loop = begun()
    loop.step()
    loop.fetch(0.1)
    loop.probe.batch_ends(None)
    assert loop.probe.n_steps == 1


def test_epochs_add_up_to_the_wall_time() -> None:
    loop = Loop()
    for epoch, n in enumerate((5, 7, 3)):
        loop.epoch(epoch, boundary_s=0.25)
        for _ in range(n):
            loop.step()
        loop.end_epoch()
    loop.clock.advance(0.25)
    epochs = loop.probe.epochs_so_far()
    assert [e.n_steps for e in epochs] == [5, 7, 3]
    assert [e.samples for e in epochs] == [20, 28, 12]
    assert sum(e.wall_s for e in epochs) == pytest.approx(loop.clock.now / 1e9)
    for epoch in epochs:
        assert sum(epoch.phases.values()) == pytest.approx(epoch.wall_s)
        assert epoch.step_p50_s == pytest.approx(0.45, rel=0.02)


def test_steps_of_a_profiler_window_count_in_no_statistic() -> None:
    loop = begun()
    for i in range(40):
        if i == 20:
            loop.probe.profiling(True)
        if i == 25:
            loop.probe.profiling(False)
        loop.step(forward_s=5.0 if 20 <= i < 25 else 0.3)
    times = loop.times()
    assert times.step_s.p99 < 0.5
    assert times.span_s == pytest.approx(times.n_steps * 0.45, rel=0.05)
    assert loop.probe.n_steps == 40


@given(
    fetches=st.lists(st.floats(0.001, 0.2), min_size=5, max_size=120),
    every=st.integers(1, 30),
)
def test_times_do_not_depend_on_when_rows_are_aggregated(fetches: list[float], every: int) -> None:
    def run(folds: bool) -> StageTimes:
        loop = begun()
        for _ in range(20):  # the warm-up is known from here on
            loop.step()
        loop.probe.aggregate()
        for i, fetch_s in enumerate(fetches):
            loop.step(fetch_s=fetch_s)
            if folds and i % every == 0:
                loop.probe.aggregate()
        return loop.times()

    often, seldom = run(True), run(False)
    assert often.n_steps == seldom.n_steps
    assert often.span_s == pytest.approx(seldom.span_s)
    assert often.step_s.p50 == seldom.step_s.p50
    assert often.step_s.std == pytest.approx(seldom.step_s.std, abs=1e-6)
    assert {n: p.total_s for n, p in often.phases.items()} == pytest.approx(
        {n: p.total_s for n, p in seldom.phases.items()}
    )
    assert [b.first_step for b in often.timeline] == [b.first_step for b in seldom.timeline]
    assert [b.step_s for b in often.timeline] == pytest.approx([b.step_s for b in seldom.timeline])


def test_rows_kept_stay_bounded_when_the_run_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = begun()
    longest = 0
    for _ in range(5000):
        loop.step()
        longest = max(longest, len(loop.probe._rows))
    assert longest <= (stage_module.RECORDS_BEFORE_AGGREGATION + 2) * stage_module.RECORD_WIDTH
    assert loop.times().n_steps == 4999


class Point:
    """A batch of an unknown type."""


class Computed:
    """A batch whose shape its own code computes."""

    @property
    def shape(self) -> tuple[int, int]:
        raise AssertionError("code of the batch was run")


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (torch.zeros(3, 2), 3),
        ([torch.zeros(3, 2), torch.zeros(5)], 3),
        ((torch.zeros(()), torch.zeros(5)), 5),  # one number has no samples
        ({"x": torch.zeros(7), "y": torch.zeros(2)}, 7),
        ({"a": {"b": [{"c": torch.zeros(6)}]}}, 6),
        ({"names": ["a", "b"], "x": torch.zeros(2)}, 2),
        ({"a": {"b": [{"c": [torch.zeros(6)]}]}}, -1),  # deeper than the search
        (["a", "b"], -1),
        (None, -1),
        (Point(), -1),
        (Computed(), -1),
        (np.zeros((6, 2)), 6),
        (torch.zeros(()), -1),
        (UserDict(x=BATCH), 4),
    ],
)
def test_batch_size_is_the_first_tensors_first_dimension(batch: Any, expected: int) -> None:
    assert size_reader(batch)(batch) == expected


def test_samples_are_unknown_when_a_batch_is_of_no_known_kind() -> None:
    loop = begun()
    for batch in (BATCH, BATCH, BATCH, Point(), BATCH):
        loop.step(batch=batch)
    assert loop.times().samples_per_s is None
    assert loop.probe.epochs_so_far()[0].samples is None


@pytest.fixture
def visited(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each object that a search of a batch visited."""
    seen: list[int] = []

    def search_limit(most: int = plain.MAX_VISITED) -> Iterator[int]:
        for n in range(most):
            seen.append(n)
            yield n

    monkeypatch.setattr(plain, "search_limit", search_limit)
    return seen


def test_batch_is_searched_once_when_it_has_no_tensors(visited: list[int]) -> None:
    loop = begun()
    for _ in range(5):
        loop.step(batch=[{"a": 1.0}, {"a": 2.0}])
    assert len(visited) == 2 * 5  # the list, two dicts and two numbers, for samples and for tokens
    assert loop.times().samples_per_s is None


def test_batches_are_searched_once_per_type_when_types_take_turns(visited: list[int]) -> None:
    loop = begun()
    for _ in range(5):
        loop.step(batch=BATCH)
        loop.step(batch=[BATCH, BATCH])
        loop.step(batch=["a", "b"])
    assert loop.probe.epochs_so_far()[0].samples is None
    assert len(visited) < 5 * 6


def test_batch_is_searched_again_when_its_structure_changes() -> None:
    loop = begun()
    for batch in ({"x": BATCH}, {"y": BATCH}, {"x": BATCH, "y": 1}):
        loop.step(batch=batch)
    assert loop.probe.epochs_so_far()[0].samples == 12


def test_search_of_a_batch_ends_when_it_holds_many_numbers(visited: list[int]) -> None:
    loop = begun()
    loop.step(batch=[[float(n) for n in range(400)] for _ in range(100)])
    assert len(visited) == 2 * plain.MAX_VISITED


def test_tensor_behind_many_numbers_is_not_found() -> None:
    batch = [[1.0] * 5, torch.zeros(1)]
    assert [len(list(plain.tensors_in(batch, left=plain.search_limit(most)))) for most in (7, 8)] == [0, 1]


def test_batch_size_is_read_again_when_batches_change_type() -> None:
    loop = begun()
    for batch in (BATCH, [BATCH, BATCH], {"x": BATCH}, BATCH, [BATCH]):
        loop.step(batch=batch)
    assert loop.probe.epochs_so_far()[0].samples == 20


def test_epochs_are_all_counted_when_only_the_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_module, "_MAX_EPOCHS", 3)
    loop = Loop()
    for epoch in range(7):
        loop.epoch(epoch)
        loop.step()
        assert loop.probe.n_epochs() == epoch + 1
        loop.end_epoch()
    assert len(loop.probe.epochs_so_far()) == 4
    assert loop.probe.n_epochs() == 7


def test_epoch_without_a_step_is_not_counted() -> None:
    loop = Loop()
    assert loop.probe.n_epochs() == 0
    loop.epoch(0)
    loop.fetch(0.1)
    loop.end_epoch()
    loop.epoch(1)
    loop.step()
    assert loop.probe.n_epochs() == 1


def test_median_step_of_an_epoch_leaves_out_its_first_and_profiled_ones() -> None:
    loop = begun()
    loop.step(fetch_s=9.0)
    loop.probe.profiling(True)
    for _ in range(5):
        loop.step(forward_s=5.0)
    loop.probe.profiling(False)
    loop.step(forward_s=5.0)  # in the row in which the window closed
    for _ in range(4):
        loop.step()
    (epoch,) = loop.probe.epochs_so_far()
    assert epoch.n_steps == 11
    assert epoch.step_p50_s == pytest.approx(0.45, rel=0.02)


def test_boundary_of_an_epoch_ends_with_the_next_one_and_excludes_perfdoctors_reporting() -> None:
    loop = Loop()
    for epoch, boundary_s in enumerate((0.5, 0.25, 0.75)):
        loop.epoch(epoch, boundary_s)
        for _ in range(3):
            loop.step()
        if epoch == 1:
            loop.probe.aggregate()
        loop.end_epoch()
        if epoch == 1:
            loop.probe.reporting(True)
            loop.clock.advance(30)
            loop.probe.reporting(False)
            loop.probe.aggregate()
    steps = [epoch for epoch in loop.probe.epochs_so_far() if epoch.n_steps]
    assert [epoch.boundary_s for epoch in steps] == [pytest.approx(0.25), pytest.approx(0.75), None]


def test_epoch_excludes_perfdoctors_pause_after_it() -> None:
    loop = Loop()
    own, other = Span(loop.timeline, "callbacks", kind="self"), Span(loop.timeline, "callbacks")
    loop.epoch(0)
    loop.step()
    loop.end_epoch()
    with other:
        loop.clock.advance(0.5)
    with own:
        loop.probe.reporting(True)
        loop.clock.advance(30)
        loop.probe.reporting(False)
    (epoch,) = loop.probe.epochs_so_far()
    assert epoch.phases["callbacks"] == pytest.approx(0.5)
    assert epoch.wall_s == pytest.approx(sum(epoch.phases.values()))


def test_first_step_is_known_when_something_left_it_out_of_the_statistics() -> None:
    loop = begun()
    loop.probe.leave_out()  # as a compiler does that works in it
    loop.step(forward_s=9.0)
    for _ in range(5):
        loop.step()
    loop.times()
    assert sum(loop.probe.first_step_ns) > 9e9


def test_first_step_is_unknown_when_a_profiler_window_held_it() -> None:
    loop = begun()
    loop.probe.profiling(True)
    loop.step(forward_s=9.0)
    loop.probe.profiling(False)
    for _ in range(5):
        loop.step()
    loop.times()
    assert loop.probe.first_step_ns is None
