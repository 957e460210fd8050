"""Samples are made one at a time; slow ones are made again."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Literal

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from lightning_perf.probes.loader import samples as samples_module
from lightning_perf.probes.loader.pipeline import Pipeline
from lightning_perf.probes.loader.samples import ENOUGH_SLOW, Samples

from . import planted

USUAL_S, SLOW_S = 20e-6, 0.005


@pytest.mark.parametrize(("n_slow", "expected"), [(0, False), (1, True), (ENOUGH_SLOW - 1, True), (ENOUGH_SLOW, False)])
def test_more_samples_are_timed_when_only_few_of_them_were_slow(n_slow: int, expected: bool) -> None:
    samples = Samples()
    samples.sample_s = [0.001] * 90 + [0.0051] * n_slow + [0.0049] * 5
    assert samples.n_slow() == n_slow
    assert samples.has_few_slow() is expected


class Clock:
    """A fake clock that a dataset advances, with the number of waits."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.n_waits = 0

    def perf_counter(self) -> float:
        return self.now_s

    process_time = perf_counter


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(samples_module, "time", made)
    monkeypatch.setattr(samples_module, "queued_s", lambda: 0.0)
    monkeypatch.setattr(samples_module, "n_waits", lambda: made.n_waits)
    return made


class Timed(planted.Plain):
    """One sample in 32 is slow: always the same ones, or, on a disturbed machine, every 32nd that is made."""

    def __init__(self, clock: Clock, why: Literal["computes", "waits", "disturbed"]) -> None:
        self.clock, self.why = clock, why
        self.asked: list[int] = []

    def __getitem__(self, index: int) -> torch.Tensor:
        self.asked.append(index)
        place = len(self.asked) if self.why == "disturbed" else index
        self.clock.now_s += SLOW_S if place % 32 == 7 else USUAL_S
        self.clock.n_waits += place % 32 == 7 and self.why == "waits"
        return super().__getitem__(index)


def pass_over(dataset: Timed) -> tuple[Pipeline, Samples]:
    """All samples of a dataset, in order."""
    pipeline, samples = Pipeline(DataLoader(dataset, batch_size=planted.BATCH_SIZE)), Samples()
    for _, unit in zip(range(planted.N_SAMPLES // planted.BATCH_SIZE), pipeline.units, strict=False):
        samples.make_batch(pipeline, unit, late_s=float("inf"))
    dataset.asked.clear()
    return pipeline, samples


@pytest.mark.parametrize(
    ("why", "least", "most"), [("computes", 0.99, 1.0), ("waits", 0.99, 1.0), ("disturbed", 0, 0.1)]
)
def test_slow_samples_are_distinguished_from_a_disturbed_machine(clock: Clock, why, least: float, most: float) -> None:
    pipeline, samples = pass_over(Timed(clock, why))
    again = samples.slow_again(pipeline, limit_s=10.0)
    assert least <= again <= most


def test_samples_that_waited_are_not_made_again(clock: Clock) -> None:
    dataset = Timed(clock, "waits")
    pipeline, samples = pass_over(dataset)
    samples.slow_again(pipeline, limit_s=10.0)
    assert dataset.asked == []


@pytest.mark.parametrize(("limit_s", "n"), [(0.9 * SLOW_S, 0), (1.1 * SLOW_S, 1), (3.1 * SLOW_S, 3), (10.0, 20)])
def test_slow_samples_are_loaded_again_only_while_time_is_left(clock: Clock, limit_s: float, n: int) -> None:
    dataset = Timed(clock, "computes")
    pipeline, samples = pass_over(dataset)
    assert (samples.slow_again(pipeline, limit_s) is None) == (n == 0)
    assert [index % 32 for index in dataset.asked] == n * [7]


class TimedStream(IterableDataset):
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def __iter__(self) -> Iterator[torch.Tensor]:
        for place in itertools.count():
            self.clock.now_s += SLOW_S if place % 32 == 7 else USUAL_S
            yield torch.zeros(1)


def test_samples_of_a_stream_cannot_be_made_again(clock: Clock) -> None:
    pipeline, samples = Pipeline(DataLoader(TimedStream(clock), batch_size=4)), Samples()
    for _, unit in zip(range(32), pipeline.units, strict=False):
        samples.make_batch(pipeline, unit, late_s=float("inf"))
    assert max(samples.sample_s) == pytest.approx(SLOW_S)
    assert samples.slow_again(pipeline, limit_s=10.0) is None


class Raising(planted.Plain):
    def __getitem__(self, index: int) -> torch.Tensor:
        raise ValueError


class RaisingStream(IterableDataset):
    def __iter__(self) -> Iterator[torch.Tensor]:
        raise ValueError


@pytest.mark.parametrize(("dataset", "argument"), [(Raising(), 0), (RaisingStream(), None)])
def test_argument_that_raises_is_known_unless_the_dataset_has_no_indices(dataset: Any, argument: int | None) -> None:
    pipeline, samples = Pipeline(DataLoader(dataset, batch_size=4)), Samples()
    with pytest.raises(ValueError):
        samples.make_batch(pipeline, next(pipeline.units), late_s=float("inf"))
    assert samples.argument == argument


def test_wall_time_is_at_least_cpu_time_when_more_queueing_is_counted_than_time_passed(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples_module, "queued_s", lambda: 2 * clock.now_s)
    _, samples = pass_over(Timed(clock, "computes"))
    assert samples.wall_s == pytest.approx(samples.cpu_s)
    assert samples.cpu_s > 0


@pytest.mark.parametrize("n_batches", [4, 7, 8])
def test_a_smaller_last_batch_of_an_epoch_is_not_the_usual_one(n_batches: int) -> None:
    pipeline, samples = Pipeline(DataLoader(torch.zeros(100, 10), batch_size=64)), Samples()
    for _, unit in zip(range(n_batches), pipeline.units, strict=False):
        samples.make_batch(pipeline, unit, late_s=float("inf"))
    fields = samples.fields()
    assert (fields["batch_size"], fields["batch_bytes"], len(samples.results)) == (64, 64 * 40, 64)
