"""Content of a batch, inferred from values and memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Subset, TensorDataset

from lightning_perf.probes.loader.batch import BatchContents, indexes_tensors


def contents_of(*batches: Any) -> dict[str, Any]:
    contents = BatchContents()
    for batch in batches:
        contents.add(batch)
    return contents.fields()


def test_contents_count_bytes_tensors_and_objects_when_a_batch_is_nested() -> None:
    batch = {"x": torch.zeros(4, 2), "more": [np.zeros(3), ("name", 7)]}
    fields = contents_of(batch)
    assert (fields["n_tensors"], fields["batch_bytes"]) == (2, 4 * 2 * 4 + 3 * 8)
    assert fields["bytes_by_dtype"] == {"float32": 32, "float64": 24}
    assert fields["n_objects"] == 5  # dict, list, tuple, string, number


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_sparse_tensors_count_only_what_they_store(layout: torch.layout) -> None:
    tensor = torch.eye(1000).to_sparse(layout=layout)
    assert contents_of({"x": tensor})["bytes_by_dtype"]["float32"] < 30_000  # 4 MB if dense


@pytest.mark.parametrize(
    ("field", "is_narrow"),
    [
        (torch.randint(0, 256, (64, 8)).float(), True),
        (torch.randint(0, 256, (64, 8)).float() / 255, True),
        (torch.randint(0, 256, (64, 8)).to(torch.float64) / 255, True),
        ((torch.randint(0, 256, (64, 8)).float() / 255).half(), True),
        (torch.rand(64, 8), False),
        (torch.randn(64, 8), False),
        (torch.arange(512.0), False),
        (torch.full((8,), float("nan")), False),
        (torch.randint(0, 256, (64, 8)), False),  # integers say themselves how wide they are
        (torch.zeros(0), False),
    ],
)
def test_narrow_bytes_count_floats_that_were_bytes(field: torch.Tensor, is_narrow: bool) -> None:
    assert contents_of({"x": field, "y": torch.randn(3)})["narrow_bytes"] == (field.nbytes if is_narrow else 0)


def test_narrow_bytes_count_a_field_only_when_every_batch_fits() -> None:
    ones = torch.ones(8)
    assert contents_of((ones,), (ones,))["narrow_bytes"] == 32
    assert contents_of((ones,), (ones / 7,))["narrow_bytes"] == 0
    assert contents_of((ones / 7,), (ones,))["narrow_bytes"] == 0


def test_narrow_bytes_are_of_all_items_when_a_field_is_a_long_list() -> None:
    assert contents_of([torch.ones(4) for _ in range(200)])["narrow_bytes"] == 200 * 16
    assert contents_of([torch.ones(4) / (7 if i == 150 else 1) for i in range(200)])["narrow_bytes"] == 0


def test_narrow_bytes_are_of_the_largest_batch_when_fields_change() -> None:
    assert contents_of({"a": torch.ones(2)}, {"b": torch.ones(4)}, {"a": torch.ones(2)})["narrow_bytes"] == 16


class Held:
    def __init__(self, values: Any) -> None:
        self.values = values

    def __getitem__(self, index: int) -> Any:
        return self.values[index]


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (TensorDataset(torch.randn(4, 2), torch.zeros(4)), True),
        (Subset(TensorDataset(torch.randn(4, 2)), [1, 2]), True),
        (Held(torch.randn(4, 2)), True),
        (Held(np.zeros((4, 2))), True),
        (Held([torch.randn(2) for _ in range(4)]), True),  # no row, but nothing is made either
        (type("Copies", (Held,), {"__getitem__": lambda self, i: self.values[i] * 2})(torch.randn(4, 2)), False),
        (type("Makes", (Held,), {"__getitem__": lambda self, i: torch.zeros(2)})(torch.randn(4, 2)), False),
        (type("Numbers", (Held,), {"__getitem__": lambda self, i: 7})(torch.randn(4, 2)), False),
    ],
)
def test_samples_are_rows_when_they_are_in_the_datasets_memory(dataset: Any, expected: bool) -> None:
    assert indexes_tensors(dataset, dataset[1]) is expected
