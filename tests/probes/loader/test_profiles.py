"""Time is counted for the user's function, whichever library it was spent in."""

from __future__ import annotations

import math
import os
import time
import zlib
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import pytest

from lightning_perf.probes.loader import hot, profiles
from lightning_perf.probes.loader.hot import find_hot
from lightning_perf.probes.loader.profiles import Profile, is_users, profile_exactly, profile_sampled

pytest.importorskip("pyinstrument")  # now: to import it may take longer than some of these samplings
BLOB = os.urandom(40_000)


def in_c() -> None:
    zlib.compress(BLOB)


def in_a_library() -> float:
    return sum(NormalDist(0, 1).samples(2000, seed=1))


def outer() -> None:
    in_c()
    in_a_library()


def exactly(work: Callable[[], Any]) -> Profile:
    return profile_exactly(work, math.inf, 50)


def sampled(work: Callable[[], Any]) -> Profile:
    return profile_sampled(work, time.perf_counter() + 0.6)


@pytest.mark.parametrize("profile", [exactly, sampled])
def test_blame_goes_to_the_innermost_function_of_the_users(profile: Callable[..., Profile]) -> None:
    seen = profile(outer)
    blamed = {place.name: weight.blamed_s / seen.seconds for place, weight in seen.weights.items()}
    total = {place.name: weight.total_s / seen.seconds for place, weight in seen.weights.items()}
    assert blamed["in_c"] > 0.05
    assert blamed["in_a_library"] > 0.05
    assert blamed["outer"] < 0.2
    assert blamed.get("samples", 0.0) == 0.0
    assert total["outer"] > 0.95
    assert sum(blamed.values()) == pytest.approx(1.0, abs=0.1)
    native = {place.name: weight.native_s / seen.seconds for place, weight in seen.weights.items()}
    assert native["in_c"] > 0.5 * blamed["in_c"]


def in_a_comprehension() -> float:
    return sum([math.sqrt(number) for number in range(20_000)])


@pytest.mark.parametrize("profile", [exactly, sampled])
def test_blame_for_a_comprehension_goes_to_its_function(profile: Callable[..., Profile]) -> None:
    seen = profile(in_a_comprehension)
    blamed = {place.name: weight.blamed_s / seen.seconds for place, weight in seen.weights.items()}
    assert blamed["in_a_comprehension"] > 0.9
    assert blamed.get("<listcomp>", 0.0) == 0.0


def test_shares_come_from_the_profiler_that_slowed_the_work_less() -> None:
    def slowed(basis: str, seconds: float) -> Profile:
        return Profile(basis, seconds, 10, {}, {})

    assert hot._truer(slowed("cProfile", 2.0), slowed("pyinstrument", 1.0), 0.1).basis == "pyinstrument"
    assert hot._truer(slowed("cProfile", 1.0), slowed("pyinstrument", 1.0), 0.1).basis == "cProfile"
    assert hot._truer(slowed("cProfile", 9.0), None, 0.1).basis == "cProfile"


def test_functions_are_found_and_the_reason_told_when_no_sampler_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot, "has_sampler", lambda: False)
    found = find_hot(outer, "getitem", 1e-3, 0.3, wants_lines=False)
    assert found.functions[0].basis == "cProfile"
    assert "pyinstrument is not installed" in found.missing["functions.sampled"]


def test_lines_come_from_samples_when_line_profiler_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot, "_lines", lambda *_: ((), "line_profiler is not installed (the extra 'lines')"))
    found = find_hot(in_c, "getitem", 1e-3, 0.8, wants_lines=True)
    assert found.lines[0].text == "zlib.compress(BLOB)"
    assert found.lines[0].basis == "pyinstrument"
    monkeypatch.setattr(hot, "has_sampler", lambda: False)
    found = find_hot(in_c, "getitem", 1e-3, 0.3, wants_lines=True)
    assert found.missing["lines"] == "line_profiler is not installed (the extra 'lines')"


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (__file__, True),
        (os.__file__, False),
        (pytest.__file__, False),
        (profiles.__file__, False),
        ("", False),
        ("<frozen importlib._bootstrap>", False),
        ("<ipython-input-3-abc>", True),
    ],
)
def test_a_file_is_the_users_when_it_is_neither_installed_nor_ours(file: str, expected: bool) -> None:
    assert is_users(file) is expected
