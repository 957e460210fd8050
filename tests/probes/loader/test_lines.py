"""Time is counted for the user's line, whichever library it was spent in."""

from __future__ import annotations

import zlib
from statistics import NormalDist

import pytest

from lightning_perf.probes.loader.lines import BatchLines, _Frame, _Function, _sample, with_operators

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
    functions = seen((((_Frame(function, line + 1)),), 1.0)).functions("getitem")
    assert functions[0].kind == "python"
    assert with_operators(functions, work, 1.0)[0].kind == "native"
    assert with_operators(functions, work, 1e-6)[0].kind == "python"


def test_call_is_named_as_the_line_writes_it_when_it_is_in_c() -> None:
    line = test_operators_make_a_function_native_when_its_few_lines_take_long.__code__.co_firstlineno + 2
    called = _Frame(_Function("crc32", "", 0), 0)
    assert seen(((frame("work", line=line), called), 1.0)).lines()[0].call == "zlib.crc32"
