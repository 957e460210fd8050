"""What a pass over samples decides."""

from __future__ import annotations

import statistics

import pytest
from torch.utils.data import DataLoader

from lightning_perf.probes.loader.pipeline import Pipeline
from lightning_perf.probes.loader.samples import ENOUGH_SLOW, SLOW_RATIO, Samples

from . import planted


@pytest.mark.parametrize(("n_slow", "expected"), [(0, False), (1, True), (ENOUGH_SLOW - 1, True), (ENOUGH_SLOW, False)])
def test_more_samples_are_looked_at_when_only_few_of_them_were_slow(n_slow: int, expected: bool) -> None:
    samples = Samples()
    samples.sample_s = [0.001] * 90 + [0.0051] * n_slow + [0.0049] * 5
    assert samples.has_few_slow() is expected


def pass_over(dataset: planted.Plain) -> tuple[Pipeline, Samples]:
    """All samples of a dataset, in order."""
    pipeline, samples = Pipeline(DataLoader(dataset, batch_size=planted.BATCH_SIZE)), Samples()
    for _, unit in zip(range(planted.N_SAMPLES // planted.BATCH_SIZE), pipeline.units, strict=False):
        samples.make_batch(pipeline, unit, late_s=float("inf"))
    return pipeline, samples


@pytest.mark.parametrize(
    ("dataset", "least", "most"),
    [(planted.Bursty, 0.9, 1.0), (planted.BurstyComputing, 0.5, 1.0), (planted.Disturbed, 0.0, 0.4)],
)
def test_slow_samples_are_told_from_a_disturbed_machine(dataset: type, least: float, most: float) -> None:
    pipeline, samples = pass_over(dataset())
    again = samples.slow_again(pipeline, limit_s=10.0)
    assert again is not None
    assert least <= again <= most


def test_samples_that_take_longer_than_may_be_spent_are_not_asked_again() -> None:
    dataset = planted.BurstyComputing()
    pipeline, samples = pass_over(dataset)
    slow_s = SLOW_RATIO * statistics.median(samples.sample_s)
    shortest_s = min(each_s for each_s in samples.sample_s if each_s > slow_s)
    asked: list[int] = []
    dataset.listener = asked.append
    samples.slow_again(pipeline, limit_s=0.5 * shortest_s)
    assert not asked
    samples.slow_again(pipeline, limit_s=10.0)
    assert asked


def test_samples_of_a_stream_cannot_be_asked_again() -> None:
    pipeline, samples = Pipeline(DataLoader(planted.Stream(), batch_size=4)), Samples()
    for _, unit in zip(range(8), pipeline.units, strict=False):
        samples.make_batch(pipeline, unit, late_s=float("inf"))
    assert samples.slow_again(pipeline, limit_s=10.0) is None
