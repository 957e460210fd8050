"""Parts of a loader, taken apart for measuring."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, Subset, get_worker_info
from torch.utils.data._utils.worker import WorkerInfo

from lightning_perf.probes.loader.pipeline import Pipeline

from . import planted


class Subclass(torch.Tensor):
    pass


class Batch:
    def __len__(self) -> int:
        return 8


class Many(planted.Plain):
    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [self[index] for index in indices]


@pytest.mark.parametrize(
    ("dataset", "is_batched"),
    [
        (planted.Plain(), False),
        (Many(), True),
        (Subset(planted.Plain(), range(8)), False),
        (Subset(Subset(Many(), range(8)), range(4)), True),
    ],
    ids=["plain", "many", "subset", "subset of many"],
)
def test_samples_are_timed_one_by_one_unless_the_dataset_makes_many_at_once(dataset: Any, is_batched: bool) -> None:
    pipeline = Pipeline(DataLoader(dataset, batch_size=4))
    unit = next(pipeline.units)
    assert pipeline.is_batched == is_batched
    assert pipeline.calls(unit) == ([[0, 1, 2, 3]] if is_batched else [0, 1, 2, 3])


@pytest.mark.parametrize(
    ("batch", "n_samples"),
    [
        (torch.zeros(8, 3), 8),
        ([torch.zeros(8, 3), torch.zeros(8)], 8),
        ({"name": ["a", "b"], "x": torch.zeros(8)}, 8),
        (UserDict({"ids": torch.zeros(8, 2), "mask": torch.zeros(8, 2), "label": torch.zeros(8)}), 8),
        (torch.zeros(8, 3).as_subclass(Subclass), 8),
        ({"x": torch.tensor(1.0)}, 1),
        (torch.tensor(1.0).as_subclass(Subclass), 1),
        (Batch(), 8),
        ("text", 1),
        (torch.zeros(0, 3), 1),
    ],
    ids=["tensor", "list", "names first", "UserDict", "subclass", "scalar", "subclass scalar", "own", "text", "empty"],
)
def test_samples_of_a_result_are_counted_when_the_dataset_makes_batches(batch: Any, n_samples: int) -> None:
    pipeline = Pipeline(DataLoader(planted.Plain(), batch_size=None))
    assert pipeline.samples_in(0, batch) == n_samples


class ReadingAll(IterableDataset):
    """Reads all that this version of torch says about a worker."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        return iter([bool(getattr(info, name)) for name in WorkerInfo.__annotations__])


def test_a_stream_may_read_all_that_torch_says_about_a_worker() -> None:
    Pipeline(DataLoader(ReadingAll())).check_sharding()
