from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_perf.probes.timeline.spans import (
    N_COLUMNS,
    OWN,
    PHASE_INDEX,
    FetchSpan,
    MarkedSpan,
    Span,
    Timeline,
    span_cost_ns,
)
from lightning_perf.records import PHASES
from tests.fakes import FakeClock


def unexpected(error: Exception) -> None:
    raise AssertionError("nothing should have failed") from error


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def timeline(clock: FakeClock) -> Timeline:
    return Timeline(clock, unexpected)


def test_inner_span_takes_its_time_out_of_the_outer_one(clock: FakeClock, timeline: Timeline) -> None:
    optimizer, forward = Span(timeline, "optimizer"), Span(timeline, "forward")
    clock.advance(1)
    with optimizer:
        clock.advance(2)
        with forward:
            clock.advance(4)
        clock.advance(8)
    clock.advance(16)
    timeline.charge()
    assert timeline.phase_ns[PHASE_INDEX["optimizer"]] == 10e9
    assert timeline.phase_ns[PHASE_INDEX["forward"]] == 4e9
    assert timeline.phase_ns[PHASE_INDEX["startup"]] == 17e9
    assert (optimizer.ns, forward.ns) == (10e9, 4e9)
    assert (optimizer.n, forward.n) == (1, 1)


programs = st.recursive(
    st.integers(0, 50), lambda inner: st.tuples(st.sampled_from(PHASES), st.lists(inner, max_size=4)), max_leaves=40
)


@given(st.lists(programs, max_size=8))
def test_phases_add_up_to_the_wall_time_however_spans_nest(program: list[Any]) -> None:
    clock = FakeClock(start_ns=123)
    timeline = Timeline(clock, unexpected)
    spans = {phase: Span(timeline, phase) for phase in PHASES}
    expected = dict.fromkeys(PHASES, 0)

    def run(part: Any, current: str) -> None:
        if isinstance(part, int):
            clock.advance(part)
            expected[current] += part * 10**9
        else:
            phase, inner = part
            with spans[phase]:  # the same span may be entered from within itself
                for one in inner:
                    run(one, phase)

    for part in program:
        run(part, "startup")
    timeline.charge()
    assert {phase: timeline.phase_ns[i] for phase, i in PHASE_INDEX.items()} == expected
    assert sum(timeline.phase_ns) == clock.now - timeline.start_ns
    assert timeline.stack == []


def test_phase_is_that_of_the_innermost_span(timeline: Timeline) -> None:
    timeline.set_base("other")
    seen = [timeline.phase()]
    with Span(timeline, "optimizer"):
        with Span(timeline, "callbacks"):
            seen.append(timeline.phase())
        seen.append(timeline.phase())
    with Span(timeline, "forward", kind="self"):  # PerfDoctor's own time counts as callbacks
        seen.append(timeline.phase())
    seen.append(timeline.phase())
    assert seen == ["other", "callbacks", "optimizer", "callbacks", "other"]


def test_span_is_left_when_what_it_encloses_raises(clock: FakeClock, timeline: Timeline) -> None:
    def work() -> None:
        with Span(timeline, "forward"), Span(timeline, "logging"):
            clock.advance(1)
            raise KeyError

    with pytest.raises(KeyError):
        work()
    assert timeline.current is timeline.base
    assert timeline.phase_ns[PHASE_INDEX["logging"]] == 1e9


def test_lost_spans_are_left_when_unwound(clock: FakeClock, timeline: Timeline) -> None:
    Span(timeline, "optimizer").__enter__()
    Span(timeline, "forward").__enter__()
    clock.advance(1)
    timeline.unwind()
    clock.advance(2)
    timeline.charge()
    assert timeline.phase_ns[PHASE_INDEX["forward"]] == 1e9
    assert timeline.phase_ns[PHASE_INDEX["startup"]] == 2e9


def test_time_so_far_stays_with_the_old_phase_when_the_base_changes(clock: FakeClock, timeline: Timeline) -> None:
    clock.advance(1)
    timeline.set_base("other")
    clock.advance(2)
    timeline.charge()
    assert timeline.phase_ns[PHASE_INDEX["startup"]] == 1e9
    assert timeline.phase_ns[PHASE_INDEX["other"]] == 2e9


def test_rows_are_separate_when_swapped(clock: FakeClock, timeline: Timeline) -> None:
    clock.advance(1)
    inner = [0] * N_COLUMNS
    outer = timeline.swap_counters(inner)
    clock.advance(2)
    assert timeline.swap_counters(outer) is inner
    assert sum(inner) == 2e9
    assert sum(outer) == 1e9


def test_own_time_has_a_column_of_its_own(clock: FakeClock, timeline: Timeline) -> None:
    with Span(timeline, "callbacks", "PerfDoctor", "self", "on_train_batch_end"):
        clock.advance(3)
    assert timeline.phase_ns[OWN] == 3e9
    assert timeline.phase_ns[PHASE_INDEX["callbacks"]] == 0


def test_nothing_changes_any_more_when_frozen(clock: FakeClock, timeline: Timeline) -> None:
    clock.advance(1)
    timeline.charge()
    timeline.freeze()
    clock.advance(5)
    with Span(timeline, "forward"):
        clock.advance(5)
    timeline.charge()
    assert sum(timeline.phase_ns) == 1e9


def test_first_error_alone_is_reported_when_the_clock_fails() -> None:
    errors: list[Exception] = []
    clock = FakeClock()
    timeline = Timeline(clock, errors.append)
    span = Span(timeline, "forward")

    def broken() -> int:
        raise OSError("no clock")

    timeline.now_ns = broken
    fetch = FetchSpan(timeline, broken, broken)  # type: ignore[arg-type]
    for _ in range(3):
        with span, fetch:
            pass
    assert [str(error) for error in errors] == ["no clock"]


@pytest.mark.parametrize("wants_end", [True, False])
def test_fetch_notifies_its_begin_and_end(clock: FakeClock, timeline: Timeline, wants_end: bool) -> None:
    seen: list[tuple[str, int]] = []

    def before() -> bool:
        seen.append(("before", clock.now))
        return wants_end

    with FetchSpan(timeline, before, lambda: seen.append(("after", clock.now))):
        clock.advance(2)
    assert seen == [("before", 0), ("after", 2 * 10**9)][: 1 + wants_end]
    assert timeline.phase_ns[PHASE_INDEX["data_wait"]] == 2e9


@pytest.mark.parametrize("method", ["make", "enter", "exit"])
def test_span_goes_on_when_its_mark_fails(clock: FakeClock, method: str) -> None:
    errors: list[Exception] = []
    timeline = Timeline(clock, errors.append)

    class Mark:
        def __enter__(self) -> None:
            if method == "enter":
                raise OSError

        def __exit__(self, *_: Any) -> None:
            if method == "exit":
                raise OSError

    def make() -> Mark:
        if method == "make":
            raise OSError
        return Mark()

    with MarkedSpan(Span(timeline, "forward"), make):
        clock.advance(1)
    assert len(errors) == 1
    assert timeline.phase_ns[PHASE_INDEX["forward"]] == 1e9
    assert timeline.stack == []


def test_cost_of_a_span_is_positive() -> None:
    assert span_cost_ns(FakeClock(), rounds=10) > 0
