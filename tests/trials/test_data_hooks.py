"""The loader of one batch, which the ceiling of a training is measured on."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from lightning_perf.trials.data_hooks import MANY_BATCHES, one_batch_of


def test_one_batch_comes_again_and_again_with_containers_of_its_own() -> None:
    class Wrapped(DataLoader):
        def __iter__(self):
            return ({"x": batch, "meta": ["name"]} for (batch,) in super().__iter__())

    loader = one_batch_of(Wrapped(TensorDataset(torch.arange(8.0)), batch_size=2))
    assert len(loader) == MANY_BATCHES
    first, second = islice(loader, 2)
    assert first["x"] is second["x"]
    assert torch.equal(first.pop("x"), torch.tensor([0.0, 1.0]))
    first["meta"].clear()
    assert second == {"x": second["x"], "meta": ["name"]}
    assert next(iter(loader)) == second


def test_one_batch_has_no_length_when_its_loader_has_none() -> None:
    loader = one_batch_of(iter([torch.zeros(1), torch.ones(1)]))
    with pytest.raises(TypeError):
        len(loader)
    assert [float(batch) for batch in islice(loader, 3)] == [0.0, 0.0, 0.0]
