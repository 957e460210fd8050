"""Items that are kept in memory are timed, unless they may not be kept."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from lightning_perf import cached_dataset
from lightning_perf.errors import TreatmentError
from lightning_perf.probes.loader.kept import time_kept
from lightning_perf.probes.loader.pipeline import Pipeline

from . import planted

_LIMIT_S = 60.0  # never reached here


class Counted(planted.Plain):
    def __init__(self, n: int = planted.N_SAMPLES) -> None:
        self.n, self.loads = n, 0

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        self.loads += 1
        return super().__getitem__(index)


class Drawing(planted.Plain):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) * random.random()


class Changing(Counted):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) + self.loads


class Batches(Counted):
    """Returns a batch for each index."""

    def __getitem__(self, index: int) -> Any:
        return torch.full((planted.BATCH_SIZE, 8), float(super().__getitem__(index)[0]))


def pipeline_of(data: Any, **arguments: Any) -> Pipeline:
    return Pipeline(DataLoader(data, **{"batch_size": planted.BATCH_SIZE, "shuffle": True, **arguments}))


def test_a_few_items_are_loaded_twice_and_compared() -> None:
    data = Counted()
    kept = time_kept(pipeline_of(data), 1e-5, _LIMIT_S)
    assert kept.n_bytes == pytest.approx(planted.N_SAMPLES * 8 * 4, rel=5)
    assert 0 < kept.item_s < 1.0
    assert kept.n_compared == cached_dataset.SAMPLED_ITEMS
    n_hits_compared = data.loads - 2 * cached_dataset.SAMPLED_ITEMS
    assert 3 <= n_hits_compared <= 9  # by the cache itself


def test_whole_batches_are_timed_when_the_dataset_makes_them() -> None:
    kept = time_kept(pipeline_of(Batches(), batch_size=None), 1e-5, _LIMIT_S)
    assert kept.n_bytes >= planted.N_SAMPLES * planted.BATCH_SIZE * 8 * 4


def test_dataset_of_a_few_items_is_timed() -> None:
    assert time_kept(pipeline_of(Counted(3)), 1e-5, _LIMIT_S).item_s > 0


@pytest.mark.parametrize(
    ("data", "arguments", "reason"),
    [
        (Drawing(), {}, "draws random numbers"),
        (Changing(), {}, "differs when it is loaded again"),
        (Counted(), {"batch_size": None, "sampler": [[0, 1], [2, 3]], "shuffle": None}, "does not yield whole numbers"),
        (planted.Stream(), {"shuffle": None}, "have no index"),
    ],
    ids=["random", "changing", "lists of indices", "iterable"],
)
def test_reason_is_given_when_items_may_not_be_kept(data: Any, arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(TreatmentError, match=reason):
        time_kept(pipeline_of(data, **arguments), 1e-5, _LIMIT_S)


def test_reason_is_given_when_memory_is_too_short(monkeypatch: pytest.MonkeyPatch) -> None:
    size = time_kept(pipeline_of(Counted(40)), 1e-5, _LIMIT_S).n_bytes
    monkeypatch.setattr(cached_dataset, "free_bytes", lambda: 2 * size)
    time_kept(pipeline_of(Counted(40)), 1e-5, _LIMIT_S)
    monkeypatch.setattr(cached_dataset, "free_bytes", lambda: 2 * size - 2)
    with pytest.raises(TreatmentError, match="40 items take about"):
        time_kept(pipeline_of(Counted(40)), 1e-5, _LIMIT_S)


def test_nothing_is_loaded_when_it_would_take_too_long() -> None:
    data = Counted()
    with pytest.raises(TimeoutError, match="takes longer than 1 s"):
        time_kept(pipeline_of(data), 0.2, 1.0)
    assert data.loads == 0


@pytest.mark.usefixtures("short_stages")
@pytest.mark.parametrize(
    ("data", "may_keep", "reason"),
    [
        (Counted(), True, ""),
        (Drawing(), False, "draws random numbers"),
    ],
    ids=["same", "random"],
)
def test_probe_records_whether_items_may_be_kept(data: Any, may_keep: bool, reason: str) -> None:
    record = planted.probed(DataLoader(data, batch_size=planted.BATCH_SIZE), 10.0)
    assert record.may_keep is may_keep
    assert (record.kept_s is not None) is may_keep
    assert reason in record.missing.get("kept_s", "")
