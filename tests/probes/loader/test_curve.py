"""Which numbers of workers are tried, and how their times are summarized."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from lightning_perf.probes.loader import stages
from lightning_perf.probes.loader.batch import mean_interval, summarize
from lightning_perf.probes.loader.curve import CurveMeasurement, candidates
from lightning_perf.records import LoaderProbe


@pytest.mark.parametrize(
    ("cores", "cpu_fraction", "now", "expected"),
    [
        (2, 0.9, 0, [0, 1, 2]),
        (6, 0.9, 0, [0, 1, 2, 4, 6]),
        (6, 0.9, 3, [0, 1, 2, 3, 4, 6]),
        (2, 0.1, 0, [0, 1, 2, 4, 8]),  # samples that wait leave the cores to others
        (1, None, 0, [0, 1]),
        (0.5, 0.9, 0, [0, 1]),
        (128, 0.9, 0, [0, 1, 2, 4, 8, 16, 32, 64]),
        (2, 0.9, 16, [0, 1, 2]),  # the number in use is tried after the knee
    ],
)
def test_candidates_double_up_to_the_cores(cores: float, cpu_fraction: float, now: int, expected: list[int]) -> None:
    assert candidates(cores, cpu_fraction, now) == expected


def test_repeated_reports_few_slow_samples_by_mean_and_maximum() -> None:
    times = summarize([0.001] * 97 + [0.03] * 3)
    assert (times.n, times.p50_s, times.max_s) == (100, 0.001, 0.03)
    assert times.mean_s == pytest.approx(0.00187)
    assert summarize([]) is None


def test_mean_interval_holds_the_true_mean_in_95_of_100_cases() -> None:
    rng = np.random.default_rng(0)
    for n in (4, 12, 40):
        inside = sum(low <= 1.0 <= high for low, high in (mean_interval(rng.normal(1, 0.1, n)) for _ in range(2000)))
        assert 0.93 < inside / 2000 < 0.97
    assert mean_interval([2.0]) == (2.0, 2.0)


@pytest.mark.parametrize(("taken", "numbers"), [(10.0, [0, 1, 2]), (1.0, [0, 1, 2, 8]), (100.0, [0])])
def test_fewer_workers_are_tried_when_memory_is_short(
    monkeypatch: pytest.MonkeyPatch, taken: float, numbers: list[int]
) -> None:
    monkeypatch.setattr(stages, "private_bytes", lambda with_copied_pages: taken)
    probe = stages._Stages.__new__(stages._Stages)
    probe._memory_allowed, probe._missing = 25.0, {}
    assert probe._affordable([0, 1, 2, 8]) == numbers
    assert ("curve" in probe._missing) == (len(numbers) < 4)


def test_number_in_use_is_not_tried_when_memory_is_too_short_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[int]] = []
    monkeypatch.setattr(stages, "private_bytes", lambda with_copied_pages: 10.0)
    monkeypatch.setattr(stages, "limit_memory", lambda share: asked.append([share]))
    monkeypatch.setattr(
        CurveMeasurement, "measure", lambda _, numbers, batch_s, until_s, later: asked.extend([numbers, later]) or ()
    )
    probe = stages._Stages.__new__(stages._Stages)
    probe._memory_allowed, probe._missing, probe._pids, probe._start_s, probe._end_s = 25.0, {}, [], 0.0, 1.0
    probe._plan = stages.Plan(1.0, 8.0, Path(), extent="short")
    probe._probe = LoaderProbe(status="partial", batch_size=1, getitem=summarize([0.001]), getitem_cpu_fraction=1.0)
    probe._stage, probe._begin_s, probe._reporter = "", 0.0, lambda content: None
    probe._measure_curve(SimpleNamespace(num_workers=8, prefetch_factor=2))
    assert asked == [[2 * stages.MEMORY_SHARE / 2], [0, 1, 2], []]
