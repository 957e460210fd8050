"""Items that are kept in memory: loaded once, the same training, and nothing kept that must not be."""

from __future__ import annotations

import copy
import gc
import logging
import pickle
import random
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from lightning_perf import cached_dataset
from lightning_perf.errors import TreatmentError
from lightning_perf.treatments.prescription import prescription
from lightning_perf.treatments.rebuild import rebuilt
from lightning_perf.treatments.specs import parse
from lightning_perf.trials.inside import describe

from .test_applies_to import session
from .trainings import N_FEATURES, Items, train

N_ITEMS = 24


class Counted(Items):
    """Notes which items are loaded in this process."""

    def __init__(self, n: int = N_ITEMS) -> None:
        super().__init__(n)
        self.loads: list[int] = []

    def __getitem__(self, index: int) -> Any:
        self.loads.append(index)
        return self.item(index)

    def item(self, index: int) -> Any:
        return super().__getitem__(index)


class Made(Counted):
    """Items of a function of the dataset, so that each test plants its own."""

    def __init__(self, make: Any, n: int = N_ITEMS) -> None:
        super().__init__(n)
        self.make, self.epoch = make, 0

    def item(self, index: int) -> Any:
        return self.make(self, index)


def cached(data: Any, is_strict: bool = True, **arguments: Any) -> Any:
    """Return a loader whose items are cached."""
    loader = DataLoader(data, **{"batch_size": 4, **arguments})
    return rebuilt(loader, parse("dataset-cache").treatment.loader_args_for(None, loader, is_strict))


def all_batches(loader: Any, n_epochs: int = 1) -> list[Any]:
    return [batch for _ in range(n_epochs) for batch in loader]


def ones(data: Made, index: int) -> torch.Tensor:
    return torch.full((N_FEATURES,), float(index))


def test_training_is_bit_identical_and_loads_items_once_when_they_are_cached() -> None:
    found = []
    for treatments in ("", "dataset-cache"):
        data = Counted()
        given = DataLoader(data, batch_size=4, shuffle=True)
        done = train(treatments, data=given, max_epochs=4)
        found.append((done.losses, [batch[:, 0].tolist() for batch in done.module.batches], torch.get_rng_state()))
        n_again = len(data.loads) - N_ITEMS
        assert n_again == (3 * N_ITEMS if not treatments else len([1, 2, 4, 8, 16, 32, 64]))
        assert done.trainer.train_dataloader is given
    (losses, order, state), (losses_before, order_before, state_before) = found
    assert losses == losses_before
    assert order == order_before
    assert torch.equal(state, state_before)
    assert order[:6] != order[6:12]  # shuffled again


def test_training_is_bit_identical_when_workers_keep_items(tmp_path: Path) -> None:
    def load(data: Made, index: int) -> torch.Tensor:
        with (tmp_path / f"{data.name}-{torch.utils.data.get_worker_info().id}").open("a") as file:
            file.write(f"{index}\n")
        return ones(data, index)

    found, n_loads = [], []
    for treatments in ("loader-persistent", "dataset-cache"):
        data = Made(load)
        data.name = treatments
        loader = DataLoader(data, batch_size=4, num_workers=2)
        done = train(treatments, data=loader, max_epochs=3, look=lambda t, _: t.train_dataloader.persistent_workers)
        assert done.seen is True
        found.append((done.losses, [batch.tolist() for batch in done.module.batches]))
        n_loads.append(sum(len(one.read_text().split()) for one in tmp_path.glob(f"{treatments}-*")))
    assert found[0] == found[1]
    n_checks = 2 * len([1, 2, 4, 8, 16])  # of 24 hits in each worker, which gets the same items in each epoch
    assert n_loads == [3 * N_ITEMS, N_ITEMS + n_checks]


def test_memory_is_free_when_the_training_ends() -> None:
    wrappers: list[Any] = []
    done = train("dataset-cache", look=lambda t, _: wrappers.append(weakref.ref(t.train_dataloader.dataset)))
    gc.collect()
    assert {one() for one in wrappers} == {None}
    assert done.trainer.train_dataloader.dataset.n == N_ITEMS


RANDOM = {
    "torch": lambda data, index: torch.rand(N_FEATURES),
    "numpy": lambda data, index: np.random.rand(N_FEATURES),
    "Python": lambda data, index: torch.full((N_FEATURES,), random.random()),
}


@pytest.mark.parametrize("make", RANDOM.values(), ids=RANDOM)
def test_items_are_refused_at_the_first_load_that_draws_random_numbers(make: Any) -> None:
    data = Made(make)
    with pytest.raises(TreatmentError, match="loading items draws random numbers"):
        next(iter(cached(data)))
    assert len(data.loads) == 4


def augmented(data: Made, index: int) -> torch.Tensor:
    return ones(data, index) + (torch.rand(N_FEATURES) if index == 17 else 0)


def test_training_goes_on_bit_identical_when_one_item_turns_out_to_be_random(caplog: Any) -> None:
    losses = []
    for treatments in ("", "dataset-cache"):
        loader = DataLoader(Made(augmented), batch_size=4, shuffle=True)
        losses.append(train(treatments, data=loader, max_epochs=3, refused=lambda _: None).losses)
    assert losses[0] == losses[1]
    assert [record.message for record in caplog.records if record.name == "lightning_perf"] == [
        "dataset-cache was switched off: loading items draws random numbers"
    ]


def test_fit_ends_with_the_reason_when_a_worker_finds_random_items() -> None:
    with pytest.raises(TreatmentError) as error:
        train("dataset-cache", data=DataLoader(Made(augmented), batch_size=4, num_workers=1))
    assert describe(error.value) == (  # as a trial does
        "TreatmentError: dataset-cache cannot be applied: loading items draws random numbers"
    )


def by_epoch(data: Made, index: int) -> torch.Tensor:
    return torch.full((N_FEATURES,), float(index + 100 * data.epoch))


@pytest.mark.parametrize("has_getitems", [False, True])
def test_first_item_of_the_second_epoch_shows_that_items_change_with_the_epoch(
    has_getitems: bool, caplog: pytest.LogCaptureFixture
) -> None:
    data: Any = Made(by_epoch)
    loader = cached(Subset(data, range(N_ITEMS)) if has_getitems else data, is_strict=False)
    assert torch.cat(all_batches(loader))[:, 0].tolist() == list(range(N_ITEMS))
    data.epoch = 1
    with caplog.at_level(logging.WARNING):
        assert torch.cat(all_batches(loader))[:, 0].tolist() == list(range(100, 100 + N_ITEMS))
    assert "item 0 differs when it is loaded again" in caplog.text


@pytest.mark.parametrize("is_nested", [False, True])
def test_an_item_is_compared_when_an_attribute_of_the_dataset_has_changed(
    is_nested: bool, caplog: pytest.LogCaptureFixture
) -> None:
    data = Made(by_epoch)
    loader = cached(Subset(data, range(N_ITEMS)) if is_nested else data, is_strict=False)
    for epoch in range(4):  # before the last one: 48 hits, of which the next to be compared is the 64th
        data.epoch = epoch // 3
        assert torch.cat(all_batches(loader))[:, 0].tolist() == [100 * data.epoch + index for index in range(N_ITEMS)]
    assert "item 0 differs when it is loaded again" in caplog.text


def test_attributes_are_those_of_the_dataset_also_when_set() -> None:
    data = Made(by_epoch)
    wrapper = cached(data).dataset
    wrapper.epoch = 3
    assert (data.epoch, wrapper.epoch, wrapper.make, len(wrapper)) == (3, 3, by_epoch, N_ITEMS)
    with pytest.raises(AttributeError):
        _ = wrapper.unknown
    for other in (copy.copy(wrapper), pickle.loads(pickle.dumps(wrapper))):
        assert other[2].tolist() == [302.0] * N_FEATURES


ROW = 1024  # float32: 4 KiB
ROWS = torch.arange(N_ITEMS * ROW, dtype=torch.float32).reshape(N_ITEMS, ROW)


def row(data: Made, index: int) -> torch.Tensor:
    return ROWS[index]


def test_items_are_refused_with_their_sizes_when_all_of_them_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = N_ITEMS * ROW * 4
    monkeypatch.setattr(cached_dataset, "free_bytes", lambda: 2 * needed)
    assert len(all_batches(cached(Made(row)), 2)) == 12
    monkeypatch.setattr(cached_dataset, "free_bytes", lambda: 2 * needed - 2)
    with pytest.raises(TreatmentError, match=r"24 items take about 0.09375 MiB in each .* may use 0.09375 MiB"):
        all_batches(cached(Made(row)))


@pytest.mark.parametrize(("ranks", "n_processes"), [("", 2), ("4", 8)])
def test_each_worker_of_each_rank_needs_memory_for_all_items(
    ranks: str, n_processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_items = 4 * cached_dataset.SAMPLED_ITEMS
    data = Made(lambda *_: ROWS[0], n_items)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    monkeypatch.setattr(cached_dataset, "free_bytes", lambda: 2 * n_items * ROW * 4 * n_processes)
    assert len(all_batches(cached(data, num_workers=2))) == n_items // 4
    monkeypatch.setattr(cached_dataset, "free_bytes", lambda: 2 * n_items * ROW * 4 * n_processes - 99)
    with pytest.raises(TreatmentError, match=f"in each of the {n_processes} processes"):
        all_batches(cached(data, num_workers=2))


def test_no_more_is_kept_than_the_limit_when_a_few_items_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_dataset, "free_bytes", lambda: 2 * 6 * ROW * 4)
    data = Made(row)
    with pytest.raises(TreatmentError, match="24 items"):
        all_batches(cached(data, batch_size=1))
    assert len(data.loads) == 7


def test_only_a_sample_of_a_large_dataset_is_kept_before_its_size_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_dataset, "free_bytes", lambda: 2**20)
    data = Made(lambda *_: ROWS[0], n=1000)
    with pytest.raises(TreatmentError, match="1,000 items"):
        all_batches(cached(data))
    assert len(data.loads) == cached_dataset.SAMPLED_ITEMS


def test_a_row_of_a_large_tensor_does_not_keep_the_tensor() -> None:
    loader = cached(Made(row))
    all_batches(loader)
    kept = loader.dataset._items.values()
    assert [one.untyped_storage().nbytes() for one in kept] == [4 * ROW] * N_ITEMS


def nested(data: Made, index: int) -> Any:
    x = torch.full((2,), float(index), dtype=torch.bfloat16)
    return {"x": x, "more": [np.full(2, np.nan), (f"{index}", index, None, np.float32(index))]}


def test_what_is_done_to_a_batch_does_not_change_the_items() -> None:
    data = Made(nested)
    loader = cached(data, collate_fn=list)
    for _ in range(3):
        for n, item in enumerate(one for batch in loader for one in batch):
            x, (array, (text, *numbers)) = item["x"], item["more"]
            assert (x.tolist(), x.dtype, text, numbers) == ([n, n], torch.bfloat16, f"{n}", [n, None, float(n)])
            assert np.isnan(array).all()
            x.zero_()
            array[:] = 0
            item["more"].clear()
    assert len(data.loads) == N_ITEMS + len([1, 2, 4, 8, 16, 32])


DIFFERENT = {
    "values": lambda epoch: torch.full((2,), epoch),
    "shape": lambda epoch: torch.zeros(1, 2) if epoch else torch.zeros(2, 1),
    "dtype": lambda epoch: np.zeros(2, dtype=np.int64 if epoch else np.float64),
    "text": lambda epoch: {"text": f"{epoch}"},
    "keys": lambda epoch: {f"{epoch}": 1},
    "kind": lambda epoch: True if epoch else 1,
}


@pytest.mark.parametrize("make", DIFFERENT.values(), ids=DIFFERENT)
def test_any_difference_of_an_item_is_seen(make: Any) -> None:
    data = Made(lambda data, _: make(data.epoch))
    loader = cached(data, collate_fn=list)
    all_batches(loader)
    data.epoch = 1
    with pytest.raises(TreatmentError, match="item 0 differs"):
        all_batches(loader)


class Picture:
    """An item of a library."""


class OwnGenerator(Counted):
    def __init__(self) -> None:
        super().__init__()
        self.chance = [np.random.default_rng(3)]


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        info = torch.utils.data.get_worker_info()
        return iter(range(info.id if info else 0, 8, info.num_workers if info else 1))


class Endless(Dataset):
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (Stream(), "items of an IterableDataset have no index"),
        (TensorDataset(torch.zeros(8, 2)), "in memory already"),
        ([1, 2, 3], "in memory already"),
        (OwnGenerator(), r"random generator of its own \(Generator\)"),
    ],
)
def test_dataset_is_refused_before_anything_is_loaded(data: Any, says: str) -> None:
    with pytest.raises(TreatmentError, match=says):
        cached(data)


def test_dataset_without_a_length_is_refused() -> None:
    with pytest.raises(TreatmentError, match="has no len"):
        all_batches(cached(Endless(), sampler=range(8)))


@pytest.mark.parametrize("item", [Picture(), np.array([Picture()]), torch.zeros(2).to_sparse()])
def test_training_keeps_nothing_of_items_that_cannot_be_copied(item: Any, caplog: pytest.LogCaptureFixture) -> None:
    loader = cached(Made(lambda *_: item), is_strict=False, collate_fn=list)
    with caplog.at_level(logging.WARNING):
        assert all(one is item for batch in all_batches(loader, 2) for one in batch)
    assert "dataset-cache was switched off" in caplog.text
    assert not loader.dataset._items


def test_lists_of_indices_are_loaded_as_before(caplog: pytest.LogCaptureFixture) -> None:
    data: Any = Made(lambda _, indices: torch.tensor(indices))
    loader = cached(data, is_strict=False, batch_size=None, sampler=[[0, 1], [2, 3]])
    with caplog.at_level(logging.WARNING):
        assert [batch.tolist() for batch in all_batches(loader, 2)] == 2 * [[0, 1], [2, 3]]
    assert "does not yield whole numbers" in caplog.text


class WholeBatches(Counted):
    """Returns what is not one item for each index."""

    def __getitems__(self, indices: list[int]) -> Any:
        return torch.tensor(indices), torch.tensor(indices)


def test_whole_batches_of_a_dataset_are_passed_on(caplog: pytest.LogCaptureFixture) -> None:
    loader = cached(WholeBatches(), is_strict=False, batch_size=2, collate_fn=lambda batch: batch)
    with caplog.at_level(logging.WARNING):
        assert [type(batch) for batch in all_batches(loader, 2)] == [tuple] * N_ITEMS
    assert "does not return a list of items" in caplog.text


class Transformed(TensorDataset):
    """Has its tensors in memory, and computes items from them."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)[0] + 1


def test_items_that_are_computed_from_tensors_in_memory_are_kept() -> None:
    assert torch.cat(all_batches(cached(Transformed(torch.zeros(8))), 2)).tolist() == [1.0] * 16


def test_loader_keeps_its_dataset_and_the_training_goes_on_when_it_is_refused() -> None:
    told: list[Exception] = []
    own = DataLoader(TensorDataset(torch.zeros(8, N_FEATURES)), batch_size=4)
    done = train("dataset-cache", data=own, refused=told.append, look=lambda t, _: t.train_dataloader)
    assert done.seen is own
    assert ["in memory already" in str(error) for error in told] == [True]


def test_workers_of_another_treatment_persist() -> None:
    for treatments in ("dataset-cache,loader-workers=1", "loader-workers=1,dataset-cache"):
        done = train(
            treatments, look=lambda t, _: (t.train_dataloader.num_workers, t.train_dataloader.persistent_workers)
        )
        assert done.seen == (1, True)


def test_lines_to_paste_do_the_same() -> None:
    with_workers = prescription([parse("dataset-cache")], session())
    assert with_workers.code.endswith("DataLoader(..., persistent_workers=True)")
    written = prescription([parse("dataset-cache")], session(loader={"num_workers": 0}))
    data = Counted()
    names: dict[str, Any] = {"dataset": data, "torch": torch}
    exec(written.code, names)
    losses = [
        train(data=DataLoader(one, batch_size=4, shuffle=True), max_epochs=3).losses
        for one in (Counted(), names["dataset"])
    ]
    assert losses[0] == losses[1]
    assert sorted(data.loads) == list(range(N_ITEMS))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"loader": {"is_iterable": True, "refusal": ""}}, "no index"),
        ({"loader": {"is_in_memory_tensors": True}}, "in memory already"),
        ({"trainer": {"max_epochs": 1}}, "only one epoch"),
        ({"trainer": {"reload_dataloaders_every_n_epochs": 1}}, "each epoch has a loader of its own"),
    ],
)
def test_it_is_not_offered_when_nothing_would_be_loaded_twice(changes: Any, says: str) -> None:
    assert says in parse("dataset-cache").treatment.applies_to(session(**changes))
