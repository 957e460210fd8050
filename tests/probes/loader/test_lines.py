"""Time is counted for the user's line, whichever library it was spent in."""

from __future__ import annotations

import contextlib
import sys
import time
import zlib
from statistics import NormalDist

import msgspec
import numpy as np
import pytest

from lightning_perf.probes.loader import line_timer
from lightning_perf.probes.loader.lines import BatchLines, _Frame, _Function, _sample, read_worker_lines, with_operators
from lightning_perf.records import HostLine

HERE = __file__
SLEEP = _Frame(_Function("sleep", "", 0), 0)


def frame(name: str, file: str = HERE, line: int = 5) -> _Frame:
    return _Frame(_Function(name, file, 1), line)


def seen(*stacks: tuple[tuple[_Frame, ...], float]) -> BatchLines:
    lines = BatchLines()
    lines._stacks = list(stacks)
    return lines


def test_blame_goes_to_the_innermost_line_of_the_users() -> None:
    library = frame("samples", NormalDist.samples.__code__.co_filename)
    lines = seen(((frame("outer"), frame("inner", line=7), SLEEP), 3.0), ((frame("outer"), library), 1.0))
    assert [(line.function, line.line, line.share, line.entry) for line in lines.lines()] == [
        ("inner", 7, 0.75, "outer"),
        ("outer", 5, 0.25, "outer"),
    ]
    inner, outer = lines.functions("getitem")
    assert (inner.name, inner.blamed_share, inner.share, inner.own_share) == ("inner", 0.75, 0.75, 0.0)
    assert (outer.name, outer.blamed_share, outer.share, outer.own_share) == ("outer", 0.25, 1.0, 0.0)
    assert inner.kind == "native"
    assert inner.is_users
    assert lines.lines()[1].call == "statistics.samples"


def test_blame_for_a_comprehension_goes_to_its_function() -> None:
    lines = seen(((frame("outer"), frame("<listcomp>", line=9)), 1.0))
    assert [(line.function, line.line) for line in lines.lines()] == [("outer", 9)]
    assert [function.name for function in lines.functions("getitem")] == ["outer"]


def test_packages_count_when_no_line_of_the_users_was_seen() -> None:
    lines = seen(((frame("resize", pytest.__file__), SLEEP), 1.0))
    assert [line.function for line in lines.lines()] == ["resize"]
    assert not lines.functions("getitem")[0].is_users


def test_nothing_is_reported_when_only_torchs_own_code_ran() -> None:
    lines = seen(((SLEEP,), 1.0))
    assert lines.lines() == ()
    assert lines.functions("getitem") == ()
    assert lines.hot_lines() == ()
    assert _sample((SLEEP,), 1.0, ("user",)) is None


def test_operators_make_a_function_native_when_its_few_lines_take_long() -> None:
    def work() -> None:
        zlib.crc32(b"")

    line = work.__code__.co_firstlineno
    function = _Function("work", HERE, line)
    lines = seen((((_Frame(function, line + 1)),), 1.0))
    functions, n_lines = lines.functions("getitem"), lines.time_lines(work)
    assert n_lines == 1
    assert functions[0].kind == "python"
    assert with_operators(functions, n_lines, 1.0)[0].kind == "native"
    assert with_operators(functions, n_lines, 1e-6)[0].kind == "python"


def smoothed(rows: int) -> float:
    total, row = 0.0, np.ones(100_000)
    for _ in range(rows):
        total += helped(row) + float(((row + 1) / (row + 2))[0])
        with contextlib.suppress(ValueError):
            int("x" * 2000)
    return total


def helped(row: np.ndarray) -> float:
    time.sleep(0.002)
    return float(row[0])


SMOOTHED = _Function("smoothed", HERE, smoothed.__code__.co_firstlineno)


def test_operators_that_no_profiler_sees_count_for_their_own_line() -> None:
    last = SMOOTHED.line + 6
    for _ in range(5):  # a pause of the machine may fall into another line
        lines = seen(((_Frame(SMOOTHED, last),), 3.0), ((frame("draw"),), 1.0))
        assert lines.time_lines(lambda: smoothed(20)) > 40
        costly, *_ = lines.lines()
        if costly.line == SMOOTHED.line + 3 and costly.share > 0.4:
            break
    assert (costly.function, costly.line) == ("smoothed", SMOOTHED.line + 3)
    assert 0.4 < costly.share <= 0.75  # without the time in helped(), which sleeps ten times as long
    assert sum(line.share for line in lines.lines()) == pytest.approx(1.0, abs=0.06)
    assert lines.hot_lines()[0].line == SMOOTHED.line + 3


def test_samples_that_show_a_call_stay_with_its_line() -> None:
    lines = seen(((_Frame(SMOOTHED, SMOOTHED.line + 5), SLEEP), 3.0), ((_Frame(SMOOTHED, SMOOTHED.line + 6),), 1.0))
    lines.time_lines(lambda: smoothed(20))
    shares = {line.line - SMOOTHED.line: line.share for line in lines.lines()}
    assert shares[5] >= 0.75
    assert 0.1 < shares[3] <= 0.25


def test_line_keeps_its_samples_when_it_is_not_run_while_lines_are_timed() -> None:
    lines = seen(((_Frame(SMOOTHED, SMOOTHED.line + 3),), 1.0))
    lines.time_lines(lambda: smoothed(0))
    assert [line.line for line in lines.lines()] == [SMOOTHED.line + 3]


def walked(depth: int) -> float:
    rows = [
        float(np.add(np.ones(100_000), depth).sum())
        for _ in range(3)
    ]  # fmt: skip
    return rows[0] + (walked(depth - 1) if depth else 0.0)


def test_comprehension_counts_for_its_lines_and_a_recursion_for_each_call() -> None:
    function = _Function("walked", HERE, walked.__code__.co_firstlineno)
    lines = seen(((_Frame(function, function.line + 5),), 1.0))
    lines.time_lines(lambda: walked(4))
    assert lines.lines()[0].line == function.line + 2


def failing() -> None:
    with contextlib.suppress(TypeError):
        sorted([*range(50_000), "x"])  # type: ignore[type-var]


def test_call_that_raises_counts_for_its_line() -> None:
    function = _Function("failing", HERE, failing.__code__.co_firstlineno)
    lines = seen(((_Frame(function, function.line + 1),), 1.0))
    lines.time_lines(failing)
    assert lines.lines()[0].line == function.line + 2


def test_sampled_lines_are_kept_when_timed_work_does_not_run_the_function() -> None:
    lines = seen(((_Frame(SMOOTHED, 4),), 1.0))
    assert lines.time_lines(lambda: None) == 0
    assert [line.line for line in lines.lines()] == [4]
    assert [line.line for line in lines.hot_lines()] == [4]


def test_sampled_lines_are_kept_when_a_call_runs_too_many_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_timer, "_MAX_TRACED_EVENTS", 3)
    lines = seen(((_Frame(SMOOTHED, SMOOTHED.line + 4),), 1.0))
    assert 0 < lines.time_lines(lambda: smoothed(5)) <= 3
    assert [line.line for line in lines.lines()] == [SMOOTHED.line + 4]


def test_tracing_ends_when_timed_work_fails() -> None:
    def fail() -> None:
        raise ValueError("planted")

    line = fail.__code__.co_firstlineno
    lines = seen(((_Frame(_Function("fail", HERE, line), line + 1),), 1.0))
    with pytest.raises(ValueError, match="planted"):
        lines.time_lines(fail)
    assert sys.gettrace() is None


def test_call_is_named_as_the_line_writes_it_when_it_is_in_c() -> None:
    line = test_operators_make_a_function_native_when_its_few_lines_take_long.__code__.co_firstlineno + 2
    called = _Frame(_Function("crc32", "", 0), 0)
    assert seen(((frame("work", line=line), called), 1.0)).lines()[0].call == "zlib.crc32"


def test_lines_of_the_other_workers_are_kept_when_one_was_killed_while_it_wrote(tmp_path):
    line = HostLine(
        file="data.py", line=3, function="f", entry="f", call="", share=0.5, operator_fraction=0.0, n_samples=9
    )
    whole = msgspec.json.encode([line])
    (tmp_path / "lines-1").write_bytes(whole)
    (tmp_path / "lines-2").write_bytes(whole[:-9])
    (found,) = read_worker_lines(tmp_path)
    assert (found.line, found.share, found.n_samples) == (3, 0.5, 9)
