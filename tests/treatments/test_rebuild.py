"""A recreated loader yields the same samples in the same order."""

from __future__ import annotations

import gc
import multiprocessing
import os
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

from lightning_perf import seams
from lightning_perf.errors import TreatmentError
from lightning_perf.treatments.applier import Applier
from lightning_perf.treatments.rebuild import rebuilt
from lightning_perf.treatments.specs import parse_all

from .trainings import QUIET, Items, Net, Treat, loader, train

pytestmark = pytest.mark.usefixtures("frozen_objects")


class Backwards(Sampler):
    """A user's own sampler."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.n - 1, -1, -1))

    def __len__(self) -> int:
        return self.n


class Pairs(Sampler):
    """A user's own batch sampler: takes no arguments that Lightning would know."""

    def __init__(self, of: int, gap: int) -> None:
        self.of, self.gap = of, gap

    def __iter__(self) -> Iterator[list[int]]:
        return ([i, (i + self.gap) % self.of] for i in range(self.of))

    def __len__(self) -> int:
        return self.of


def doubled(samples: list[torch.Tensor]) -> torch.Tensor:
    return 2 * torch.stack(samples)


def marked(folder: str, worker_id: int) -> None:
    open(os.path.join(folder, f"worker-{worker_id}"), "w").close()


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def items() -> Items:
    return Items(24)


LOADERS: dict[str, Callable[[], DataLoader]] = {
    "in order": lambda: DataLoader(items(), batch_size=4),
    "shuffled": lambda: DataLoader(items(), batch_size=4, shuffle=True),
    "shuffled by a generator": lambda: DataLoader(items(), batch_size=4, shuffle=True, generator=generator()),
    "drop_last": lambda: DataLoader(items(), batch_size=5, shuffle=True, drop_last=True),
    "own sampler": lambda: DataLoader(items(), batch_size=4, sampler=Backwards(24)),
    "weighted": lambda: DataLoader(items(), batch_size=4, sampler=WeightedRandomSampler(range(1, 25), 24)),
    "own batch sampler": lambda: DataLoader(items(), batch_sampler=Pairs(24, gap=5)),
    "batch sampler of torch": lambda: DataLoader(
        items(), batch_sampler=BatchSampler(RandomSampler(items()), 3, drop_last=True)
    ),
    "batches by index": lambda: DataLoader(
        TensorDataset(torch.arange(192.0).reshape(24, 8)),
        sampler=BatchSampler(SequentialSampler(items()), 4, drop_last=False),
        batch_size=None,
    ),
    "single samples": lambda: DataLoader(items(), batch_size=None),
    "distributed": lambda: DataLoader(
        items(), batch_size=4, sampler=DistributedSampler(items(), num_replicas=2, rank=1, seed=5)
    ),
    "own collate": lambda: DataLoader(items(), batch_size=4, shuffle=True, collate_fn=doubled),
}


def samples(data: DataLoader, n_epochs: int = 2) -> list[Any]:
    seed_everything(11, verbose=False)
    found = []
    for epoch in range(n_epochs):
        if hasattr(data.sampler, "set_epoch"):
            data.sampler.set_epoch(epoch)
        found += [batch[0].tolist() if isinstance(batch, list) else batch.tolist() for batch in data]
    return found


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_samples_and_their_order_stay_when_workers_are_added(make: Callable[[], DataLoader]) -> None:
    expected = samples(make())
    assert samples(rebuilt(make(), {"num_workers": 2})) == expected


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_objects_and_attributes_are_the_same_when_a_loader_is_rebuilt(make: Callable[[], DataLoader]) -> None:
    old = make()
    new = rebuilt(old, {"num_workers": 2, "prefetch_factor": 3, "persistent_workers": True, "pin_memory": True})

    assert type(new) is DataLoader
    for name in ("dataset", "sampler", "batch_sampler", "collate_fn", "generator", "worker_init_fn"):
        assert getattr(new, name) is getattr(old, name)
    for name in ("batch_size", "drop_last", "timeout"):
        assert getattr(new, name) == getattr(old, name)
    assert (new.num_workers, new.prefetch_factor, new.persistent_workers, new.pin_memory) == (2, 3, True, True)
    assert (old.num_workers, old.prefetch_factor, old.persistent_workers, old.pin_memory) == (0, None, False, False)
    assert len(new) == len(old)


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_training_sees_the_same_batches_when_lightning_gets_the_rebuilt_loader(make: Callable[[], DataLoader]) -> None:
    plain = train(data=make(), max_epochs=1)
    treated = train("loader-workers=1", data=make(), max_epochs=1, look=lambda t, _: t.train_dataloader.num_workers)

    assert treated.seen == 1
    assert len(treated.module.batches) == len(plain.module.batches)
    assert str(treated.module.batches) == str(plain.module.batches)
    assert treated.losses == plain.losses


def test_training_sees_the_batches_of_what_is_pasted_in_every_epoch_when_shuffled_by_the_global_generator() -> None:
    pasted = train(data=loader(shuffle=True, num_workers=2, persistent_workers=True), max_epochs=3)
    treated = train("loader-workers=2", data=loader(shuffle=True), max_epochs=3)
    plain = train(data=loader(shuffle=True), max_epochs=1)
    assert str(treated.module.batches) == str(pasted.module.batches)
    assert treated.losses == pasted.losses
    assert treated.losses[: len(plain.losses)] == plain.losses


def test_worker_init_fn_runs_when_workers_were_added(tmp_path: Any) -> None:
    old = loader(worker_init_fn=partial(marked, str(tmp_path)))
    list(rebuilt(old, {"num_workers": 2}))
    assert sorted(os.listdir(tmp_path)) == ["worker-0", "worker-1"]


def test_what_needs_workers_is_dropped_when_workers_are_taken_away() -> None:
    old = loader(num_workers=2, prefetch_factor=4, persistent_workers=True, multiprocessing_context="fork", timeout=60)
    new = rebuilt(old, {"num_workers": 0})

    assert (new.num_workers, new.prefetch_factor, new.persistent_workers) == (0, None, False)
    assert new.multiprocessing_context is None
    assert len(list(new)) == 6
    assert (old.num_workers, old.prefetch_factor, old.persistent_workers) == (2, 4, True)


def test_workers_of_another_context_stay_so_when_there_are_more() -> None:
    new = rebuilt(loader(num_workers=1, multiprocessing_context="spawn"), {"num_workers": 2})
    assert new.multiprocessing_context.get_start_method() == "spawn"


def test_new_loader_has_its_own_iterator_when_the_old_one_is_persistent() -> None:
    old = loader(num_workers=1, persistent_workers=True)
    list(old)
    new = rebuilt(old, {"num_workers": 2})
    assert new._iterator is None
    assert old._iterator is not None
    old._iterator._shutdown_workers()


@pytest.mark.parametrize("arguments", [{"prefetch_factor": 4}, {"persistent_workers": True}])
def test_rebuilding_is_refused_when_workers_are_needed_and_absent(arguments: dict[str, Any]) -> None:
    with pytest.raises(TreatmentError, match="loader-workers"):
        rebuilt(loader(), arguments)


class Derived(DataLoader):
    """Fetches elsewhere, for all one knows."""

    def __iter__(self) -> Iterator[Any]:
        return super().__iter__()


class Narrow(DataLoader):
    """Takes no arguments of DataLoader's constructor."""

    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset)


class Named(DataLoader):
    """Keeps DataLoader's constructor."""

    def __init__(self, dataset: Any, name: str, **kwargs: Any) -> None:
        super().__init__(dataset, **kwargs)
        self.name = name


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.zeros(8) for _ in range(8))


class Sharded(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        return iter(range(8) if info is None else range(info.id, 8, info.num_workers))


class Seeded(IterableDataset):
    """Asks only for its own number, to draw other random numbers: every worker yields everything."""

    def __iter__(self) -> Iterator[int]:
        torch.utils.data.get_worker_info().id  # noqa: B018
        return iter(range(8))


class Wrapped(IterableDataset):
    def __init__(self, inner: IterableDataset) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[int]:
        return iter(self.inner)


def test_subclass_that_keeps_the_constructor_is_rebuilt_with_its_attributes() -> None:
    new = rebuilt(Named([0, 1, 2], "own", batch_size=2), {"num_workers": 1})
    assert (type(new), new.name, [batch.tolist() for batch in new]) == (Named, "own", [[0, 1], [2]])


def test_dataset_with_an_index_is_rebuilt_whatever_its_name() -> None:
    dataset = type("ImageDataPipeline", (Items,), {})()
    assert rebuilt(DataLoader(dataset), {"num_workers": 2}).num_workers == 2


@pytest.mark.parametrize("dataset", [Sharded(), Wrapped(Sharded())], ids=["own", "wrapped"])
def test_iterable_that_shards_itself_yields_each_sample_once_with_workers(dataset: IterableDataset) -> None:
    new = rebuilt(DataLoader(dataset, batch_size=2), {"num_workers": 2})
    assert sorted(torch.cat(list(new)).tolist()) == list(range(8))


class WithColumns(Stream):
    """Reads attributes that it does not have as columns."""

    def __getattr__(self, name: str) -> Any:
        return self.__dict__["columns"][name]


class OnDevice(Dataset):
    def __init__(self) -> None:
        self.parts = [torch.zeros(4, device="meta")]

    def __len__(self) -> int:
        return 4


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (Derived(Items()), "Derived overrides __iter__"),
        (type("DataLoader", (Derived,), {})(Items()), "DataLoader overrides __iter__"),
        (Narrow(Items()), "Narrow takes no num_workers"),
        (DataLoader(Stream()), "Stream does not shard itself .* yield all samples"),
        (DataLoader(Seeded()), "Seeded does not shard itself"),
        (DataLoader(WithColumns()), "WithColumns does not shard itself"),
        ([torch.zeros(8)], "list"),
        (DataLoader(OnDevice()), "meta"),
        (DataLoader(Subset(OnDevice(), [0, 1])), "meta"),
        (DataLoader([torch.zeros(4, device="meta")]), "meta"),
    ],
    ids=[
        "subclass that fetches",
        "subclass with the name of its base",
        "subclass without arguments",
        "iterable",
        "iterable with seeds",
        "iterable that computes attributes",
        "no loader",
        "on device",
        "wrapped, on device",
        "list, on device",
    ],
)
def test_rebuilding_is_refused_with_the_reason_when_it_is_not_safe(data: Any, says: str) -> None:
    with pytest.raises(TreatmentError, match=says):
        rebuilt(data, {"num_workers": 2})


class Slotted:
    __slots__ = ()

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize("dataset", [list(range(8)), Slotted()], ids=["list", "no attributes"])
def test_any_dataset_with_items_gets_workers(dataset: Any) -> None:
    old = DataLoader(dataset, batch_size=4)
    assert torch.equal(torch.cat(list(rebuilt(old, {"num_workers": 1}))), torch.cat(list(old)))


def test_batch_size_is_changed_when_the_loader_decides_it() -> None:
    old = loader(shuffle=True, drop_last=True, generator=generator())
    new = rebuilt(old, {"batch_size": 10})

    assert [len(batch) for batch in new] == [10, 10]
    assert (new.batch_size, new.sampler) == (10, old.sampler)
    assert (old.batch_size, old.batch_sampler.batch_size) == (4, 4)


@pytest.mark.parametrize("name", ["own batch sampler", "batch sampler of torch", "batches by index"])
def test_batch_size_is_refused_when_something_else_decides_it(name: str) -> None:
    with pytest.raises(TreatmentError, match="batch"):
        rebuilt(LOADERS[name](), {"batch_size": 8})


def test_all_loaders_are_rebuilt_and_the_users_own_put_back_when_they_are_combined() -> None:
    def combined() -> CombinedLoader:
        return CombinedLoader([loader(shuffle=True, generator=generator()), loader(12, batch_size=2)], "max_size_cycle")

    plain, theirs = train(data=combined(), max_epochs=1), combined()
    originals = list(theirs.flattened)
    treated = train(
        "loader-workers=1", data=theirs, max_epochs=1, look=lambda t, _: [dl.num_workers for dl in theirs.flattened]
    )

    assert treated.seen == [1, 1]
    assert treated.losses == plain.losses
    assert all(one is other for one, other in zip(theirs.flattened, originals, strict=True))
    assert theirs.iterables[0] is originals[0]


def test_users_loaders_are_put_back_when_several_treatments_exchanged_them() -> None:
    theirs = CombinedLoader([loader(), loader(12, batch_size=2)], "max_size_cycle")
    originals = list(theirs.flattened)

    def look(*_: Any) -> list[tuple[int, int]]:
        return [(one.num_workers, one.batch_size) for one in theirs.flattened]

    assert train("loader-workers=1,batch-size=x2", data=theirs, look=look).seen == [(1, 8), (1, 4)]
    assert all(one is other for one, other in zip(theirs.flattened, originals, strict=True))


def test_loaders_that_were_replaced_are_released_when_the_user_reloads_them() -> None:
    class Reloads(Net):
        def train_dataloader(self) -> DataLoader:
            return loader(8)

    alive = []

    class Count(Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            gc.collect()
            alive.append(sum(1 for child in multiprocessing.active_children() if child.is_alive()))

    module = Reloads()
    seed_everything(1, verbose=False)
    applier = Applier(parse_all("loader-workers=1,loader-persistent"))
    callbacks = [Treat(applier), Count()]
    Trainer(**QUIET, max_epochs=4, reload_dataloaders_every_n_epochs=1, callbacks=callbacks).fit(module)
    assert max(alive) <= 2
    assert multiprocessing.active_children() == []


def test_several_loaders_in_a_dict_are_rebuilt_when_the_user_combines_them_so() -> None:
    def data() -> dict[str, DataLoader]:
        return {"a": loader(shuffle=True, generator=generator()), "b": loader()}

    class FromDict(Net):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return super().training_step(list(batch.values()), batch_idx)

    plain = train(data=data(), module=FromDict, max_epochs=1)
    treated = train("loader-workers=1", data=data(), module=FromDict, max_epochs=1)
    assert treated.losses == plain.losses


def test_loaders_that_stay_as_they_are_are_not_kept_alive() -> None:
    trainer = SimpleNamespace(
        strategy=SimpleNamespace(process_dataloader=lambda loader: loader),
        state=SimpleNamespace(stage=SimpleNamespace(value="train")),
    )
    undos = seams.Undos()
    seams.tap_train_loaders(trainer, lambda loader: loader, undos)
    loader = DataLoader(range(4))
    assert trainer.strategy.process_dataloader(loader) is loader
    gone = weakref.ref(loader)
    del loader
    gc.collect()
    assert gone() is None
    undos.close()
