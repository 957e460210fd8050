"""The load next to the workers does the same work in every step."""

from __future__ import annotations

import threading

import pytest

from lightning_perf.probes.loader import load
from lightning_perf.probes.loader.curve import urgent_first
from lightning_perf.probes.loader.load import Load


@pytest.mark.parametrize("threads", [1, 3])
def test_load_computes_on_all_its_threads_in_every_round(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    seen: list[int] = []

    def hashed(_: object) -> None:
        seen.append(threading.get_ident())

    made = Load(0.002, threads, 0.01)
    monkeypatch.setattr(load.hashlib, "sha256", hashed)
    made._n_rounds = 4
    made.step()
    assert len(seen) == 4 * threads
    assert len(set(seen)) == threads


def test_load_takes_about_as_long_as_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def passes(data: memoryview) -> None:
        now[0] += 1e-3 * len(data) / len(load._CHUNK)

    monkeypatch.setattr(load.hashlib, "sha256", passes)
    monkeypatch.setattr(load.time, "perf_counter", lambda: now[0])
    for seconds in (0.0004, 0.01, 0.2):
        assert Load(seconds, 1, 1.0).seconds == pytest.approx(seconds, rel=0.1)
    assert Load(0.0, 1, 1.0).seconds == 0.0


@pytest.mark.parametrize(
    ("numbers", "needed", "expected"),
    [
        ([0, 1, 2, 4, 8], 3, ([3, 4, 8], [2, 1])),
        ([0, 1, 2], 1, ([1, 2], [])),
        ([0, 1, 2], 9, ([2], [1])),
        ([0, 1], 0, ([1], [])),
    ],
)
def test_numbers_that_hide_the_loading_are_tried_first_when_time_is_short(
    numbers: list[int], needed: int, expected: tuple[list[int], list[int]]
) -> None:
    assert urgent_first(numbers, needed) == expected
