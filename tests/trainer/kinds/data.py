"""Loaders, samplers, workers, and where batches come from."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset, get_worker_info

from trainer.models import N_FEATURES, Samples, Tiny, loader

from .loops import N_BATCHES, Deep, Varied, varied
from .registry import Run, kind


class Noisy(Varied):
    """Samples that draw from all three generators."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) + random.random() + float(np.random.rand()) + torch.rand(N_FEATURES)


def collate_noisily(samples: list[torch.Tensor]) -> torch.Tensor:
    """Collate with random noise."""
    return torch.stack(samples) + torch.rand(()) * random.random() * np.random.rand()


def seed_worker(worker_id: int) -> None:
    """Seed a worker's generators from torch's."""
    np.random.seed(torch.initial_seed() % 2**32)
    random.seed(torch.initial_seed() + worker_id)


def noisy(**arguments: Any) -> DataLoader:
    """Return a loader of noisy samples."""
    return DataLoader(Noisy(), batch_size=2, shuffle=True, collate_fn=collate_noisily, **arguments)


@kind("random-transforms", core=True, probes=True)
def random_transforms(run: Run) -> None:
    run.trainer().fit(Deep(), noisy(), noisy())


@kind("workers", core=True, probes=True)
def workers(run: Run) -> None:
    run.trainer().fit(Deep(), noisy(num_workers=2, worker_init_fn=seed_worker), noisy(num_workers=1))


@kind("persistent-workers")
def persistent_workers(run: Run) -> None:
    generator = torch.Generator().manual_seed(5)
    train = noisy(num_workers=2, persistent_workers=True, prefetch_factor=3, generator=generator)
    run.trainer(max_epochs=3).fit(Deep(), train)
    run.note(generator.get_state().sum().item())


@kind("spawned-workers", rounds=1, configurations=("everything",))
def spawned_workers(run: Run) -> None:
    data = TensorDataset(Varied().samples)  # which a worker reads without importing this

    class First(Deep):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return super().training_step(batch[0], batch_idx)

    train = DataLoader(data, 2, shuffle=True, num_workers=1, multiprocessing_context="spawn", persistent_workers=True)
    run.trainer().fit(First(), train)


@kind("getitems")
def getitems(run: Run) -> None:
    class Fetches(Noisy):
        def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
            run.note("fetched", *indices)
            return [self[index] + np.random.rand() for index in indices]

    run.trainer().fit(Deep(), DataLoader(Fetches(), batch_size=2, shuffle=True))


class Journaling(Varied):
    """Samples that write down in a file that they were read, and hold a lock file meanwhile."""

    folder = Path()

    def __getitem__(self, index: int) -> torch.Tensor:
        lock = self.folder / "lock"
        lock.touch()
        try:
            with (self.folder / "journal").open("a") as journal:
                journal.write(f"{index}\n")
        finally:
            lock.unlink()
        return super().__getitem__(index)


@kind("samples-write-files", core=True, probes=True, configurations=("defaults", "windows"))
def samples_write_files(run: Run) -> None:
    dataset = Journaling()
    dataset.folder = run.folder
    run.trainer().fit(Deep(), DataLoader(dataset, batch_size=2))
    run.note((run.folder / "journal").read_text(), (run.folder / "lock").exists())
    run.trainer().fit(Deep(), DataLoader(dataset, batch_size=2, num_workers=1))


class EveryOther:
    """A sampler of the user's own, with state."""

    def __init__(self, n: int) -> None:
        self.n, self.n_rounds = n, 0

    def __len__(self) -> int:
        return self.n // 2

    def __iter__(self) -> Iterator[int]:
        self.n_rounds += 1
        return iter(range(self.n_rounds % 2, self.n, 2))


class Uneven:
    """A batch sampler of the user's own."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return N_BATCHES

    def __iter__(self) -> Iterator[list[int]]:
        for index in range(N_BATCHES):
            yield [random.randrange(self.n) for _ in range(2 + index % 3)]


@kind("own-samplers")
def own_samplers(run: Run) -> None:
    run.trainer().fit(Deep(), DataLoader(Noisy(60), batch_size=2, sampler=EveryOther(60)))
    run.trainer().fit(Deep(), DataLoader(Noisy(), batch_sampler=Uneven(28)))


@kind("own-generator")
def own_generator(run: Run) -> None:
    generator = torch.Generator().manual_seed(11)
    sampler = RandomSampler(Varied(), replacement=True, num_samples=26, generator=generator)
    run.trainer().fit(Deep(), DataLoader(Varied(), batch_size=2, sampler=sampler))
    run.note(generator.get_state().sum().item())


class Counted(IterableDataset):
    """A stream that counts what was taken of it."""

    def __init__(self) -> None:
        self.n_taken = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(2 * N_BATCHES):
            self.n_taken += 1
            yield torch.randn(N_FEATURES) + np.random.rand()


@kind("counted-stream")
def counted_stream(run: Run) -> None:
    stream = Counted()
    run.trainer(limit_train_batches=9, max_epochs=3).fit(Deep(), DataLoader(stream, batch_size=2))
    run.note("taken", stream.n_taken)


@kind("one-shot-iterator", core=True)
def one_shot(run: Run) -> None:
    class OneShot:
        """Not a DataLoader: something to iterate once, which counts."""

        def __init__(self) -> None:
            self.n_iterated = self.n_taken = 0

        def __iter__(self) -> Iterator[torch.Tensor]:
            self.n_iterated += 1
            for index in range(N_BATCHES):
                self.n_taken += 1
                yield torch.full((2, N_FEATURES), float(index)) * random.random()

    train = OneShot()
    run.trainer().fit(Deep(), train)
    run.note(train.n_iterated, train.n_taken)


@kind("combined-loaders")
def combined(run: Run) -> None:
    class Both(Deep):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            parts = [one for one in batch.values() if one is not None]
            return sum(self.loss(one) for one in parts)

    for mode in ("min_size", "max_size", "max_size_cycle"):
        loaders = {"a": varied(6), "b": varied(9)}
        run.trainer(max_epochs=2).fit(Both(), CombinedLoader(loaders, mode))


@kind("several-validation-loaders")
def several_validation(run: Run) -> None:
    run.trainer().fit(Deep(), varied(), [varied(2), loader(3)])


@kind("rebuilt-loaders")
def rebuilt(run: Run) -> None:
    class Rebuilds(Deep):
        def train_dataloader(self) -> Any:
            run.note("rebuilt", self.current_epoch)
            return noisy()

        def val_dataloader(self) -> Any:
            return varied(2)

    run.trainer(max_epochs=4, reload_dataloaders_every_n_epochs=2).fit(Rebuilds())


class Data(LightningDataModule):
    """Hooks of a data module, each of them noted."""

    def __init__(self, notes: list[Any]) -> None:
        super().__init__()
        self.notes = notes

    def prepare_data(self) -> None:
        self.notes.append("prepared")

    def setup(self, stage: str) -> None:
        self.notes.append(stage)

    def train_dataloader(self) -> Any:
        return noisy()

    def val_dataloader(self) -> Any:
        return varied(2)

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
        self.notes.append(("moved", random.random()))
        return super().transfer_batch_to_device(batch, device, dataloader_idx)

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch + torch.rand(())

    def teardown(self, stage: str) -> None:
        self.notes.append(("end", stage))

    def state_dict(self) -> dict[str, Any]:
        return {"n": len(self.notes)}


@kind("data-module", core=True, probes=True)
def data_module(run: Run) -> None:
    run.trainer(enable_checkpointing=True).fit(Deep(), datamodule=Data(run.notes))


@kind("loader-with-hooks")
def hooked_loader(run: Run) -> None:
    class Loader(DataLoader):
        def __iter__(self) -> Any:
            run.note("iterated", self.batch_size)
            return super().__iter__()

        def __len__(self) -> int:
            return super().__len__()

    run.trainer().fit(Deep(), Loader(Noisy(), batch_size=2))


class FailsAt(Varied):
    """Raises at one sample."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 25:
            raise ValueError(f"sample {index} of {'a worker' if get_worker_info() else 'the loop'}")
        return super().__getitem__(index)


@kind("dataset-raises", core=True, probes=True)
def dataset_raises(run: Run) -> None:
    run.trainer().fit(Deep(), DataLoader(FailsAt(), batch_size=2))


# The loader may have received a batch that the loop never asked for, also alone: it is in shared memory.
@kind("worker-raises", ignore=(r"^process\.files_open: .*/dev/shm/torch_",))
def worker_raises(run: Run) -> None:
    run.trainer().fit(Deep(), DataLoader(FailsAt(), batch_size=2, num_workers=2, persistent_workers=True))


class Dies(Varied):
    """Kills its worker."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 21 and get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


# When torch's SIGCHLD handler raises is chance: within a step or after it, or once more while Lightning ends the run,
# which then restores no signal handlers and stops no workers. Each of these differs between two bare runs.
@kind(
    "worker-killed",
    core=True,
    probes=True,
    ignore=(
        r"^notes: .*\('step'",
        "^objects",
        r"^process\.random",
        r"^process\.files_open",
        r"^process\.signals\.SIG(TERM|CHLD)",
        r"^process\.threads: .*'QueueFeederThread'",
        r"^process\.processes: .*'pt_data_worker'",
        "^warnings: .*ResourceWarning: unclosed file",  # torch opens files to see whether it may, as the handler raises
    ),
)
def worker_killed(run: Run) -> None:
    train = DataLoader(Dies(), batch_size=2, num_workers=1, persistent_workers=True)
    try:
        run.trainer().fit(Deep(), train)
    except Exception:  # noqa: BLE001 - its type depends on when the loop notices
        run.note("raised")


@kind("samples-of-each-length")
def each_length(run: Run) -> None:
    class Lengths(Dataset):
        def __len__(self) -> int:
            return 2 * N_BATCHES

        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.ones(1 + index % 5, N_FEATURES) * index

    def pad(samples: list[torch.Tensor]) -> torch.Tensor:
        return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)

    run.trainer().fit(Tiny(), DataLoader(Lengths(), batch_size=2, collate_fn=pad))


@kind("no-batch-size")
def no_batch_size(run: Run) -> None:
    class Batches(Samples):
        def __getitem__(self, index: int) -> Any:
            return None if index == 3 else torch.full((2, N_FEATURES), float(index))

    run.trainer().fit(Tiny(), DataLoader(Batches(N_BATCHES), batch_size=None))
