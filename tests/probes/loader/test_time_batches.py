"""A few batches are timed without workers, in a child that leaves nothing behind."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler

from lightning_perf.probes.loader.prober import LoaderProber
from lightning_perf.records import LoaderProbe

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks only on Linux")

N_SAMPLES = 8


class Items(Dataset):
    """A few samples, with an act before each."""

    def __init__(self, act: Any = id) -> None:
        self.act = act

    def __len__(self) -> int:
        return N_SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        self.act(index)
        return torch.full((2,), float(index))


def hangs(_: int) -> None:
    time.sleep(3600)


def raises(_: int) -> None:
    raise ValueError("no such\nfile")


def prints_and_draws(_: int) -> None:
    print("to stdout", flush=True)
    os.write(2, b"to descriptor 2")
    random.random(), np.random.rand(), torch.rand(1)


class Unsized(Items):
    def __len__(self) -> int:
        raise TypeError("not known")


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        raise AssertionError("must not be iterated")


class Forbidden(SequentialSampler):
    def __iter__(self) -> Iterator[int]:
        raise AssertionError("the user's sampler must not be asked")


def loader_of(dataset: Dataset, **arguments: object) -> DataLoader:
    return DataLoader(dataset, **{"batch_size": 4, "num_workers": 2, "multiprocessing_context": "fork", **arguments})


def prober_of_batches(limit_s: float = 60.0) -> LoaderProber:
    return LoaderProber(limit_s, extent="batches")


def measured(record: LoaderProbe | None) -> float | str:
    """Return the seconds of a batch, or why they are not known."""
    return record.curve[0].batch_s if record.curve else record.reason


def measure(loader: DataLoader) -> float | str:
    prober = prober_of_batches()
    try:
        assert prober.start(loader) is None
        return measured(prober.wait())
    finally:
        prober.close()


def open_descriptors() -> list[str]:
    return sorted(os.listdir("/proc/self/fd"))


def has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def ends(pid: int) -> bool:
    """Whether a process is gone within ten seconds: an orphan is reaped by another process."""
    for _ in range(2000):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state in "ZX":
            return True
        time.sleep(0.005)
    return False


@pytest.fixture(autouse=True)
def _leaves_nothing_behind(frozen_objects: None) -> Iterator[None]:
    gc.collect()  # what earlier tests left open
    descriptors, had_children = open_descriptors(), has_children()
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGCHLD, signal.SIGALRM)]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    assert open_descriptors() == descriptors
    assert had_children or not has_children()
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGCHLD, signal.SIGALRM)] == handlers
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask


def test_batches_timing_uses_one_thread_when_the_parent_uses_more() -> None:
    def check(_: int) -> None:
        assert torch.get_num_threads() == 1

    n_threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert isinstance(measure(loader_of(Items(check))), float)
    finally:
        torch.set_num_threads(n_threads)


def test_batches_timing_covers_every_sample_of_a_batch_when_samples_are_slow() -> None:
    seconds = measure(loader_of(Items(lambda _: time.sleep(0.02))))
    assert isinstance(seconds, float)
    assert 4 * 0.02 <= seconds < 4 * 0.02 * 10


def test_timing_of_batches_runs_no_sampler_of_the_user() -> None:
    assert isinstance(measure(loader_of(Items(), sampler=Forbidden(Items()))), float)


def test_batches_timing_fetches_as_torch_does_when_the_dataset_gives_many_at_once() -> None:
    class Many(Items):
        def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
            assert len(indices) == 4
            return [torch.zeros(1)] * 4

        def __getitem__(self, index: int) -> torch.Tensor:
            raise AssertionError("one by one")

    assert isinstance(measure(loader_of(Many())), float)


def test_batches_timing_works_on_a_copy_when_workers_are_spawned() -> None:
    unpicklable = Items(lambda _: None)
    assert isinstance(measure(loader_of(Items(), multiprocessing_context="spawn")), float)
    assert "cannot be pickled" in str(measure(loader_of(unpicklable, multiprocessing_context="spawn")))
    assert isinstance(measure(loader_of(unpicklable)), float)


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (raises, "making a batch raised ValueError: no such file"),
        (lambda _: sys.exit(3), "SystemExit"),
        (lambda _: os.kill(os.getpid(), signal.SIGKILL), "its process was killed by SIGKILL"),
    ],
)
def test_batches_timing_has_the_reason_when_the_dataset_fails(act: Any, reason: str) -> None:
    assert reason in str(measure(loader_of(Items(act))))


def test_batches_timing_leaves_no_child_when_closed_early_and_twice() -> None:
    prober = prober_of_batches()
    assert prober.start(loader_of(Items(hangs))) is None
    assert prober.poll() is None
    prober.close()
    prober.close()
    assert str(measured(prober.poll())).startswith("ended before it was done")


def test_batches_timing_ends_when_the_dataset_is_about_to_write(tmp_path: Path) -> None:
    writing = Items(lambda _: (tmp_path / "cache").write_text("half"))
    assert "for writing" in str(measure(loader_of(writing)))
    assert not (tmp_path / "cache").exists()


def test_batches_timing_ends_with_its_parent_when_that_is_killed() -> None:
    script = """
import os, signal
from tests.probes.loader.test_time_batches import Items, hangs, loader_of, prober_of_batches
prober = prober_of_batches(600.0)
assert prober.start(loader_of(Items(hangs))) is None
print(prober._child._pid, flush=True)
__import__("time").sleep(0.5)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3]
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert ends(int(done.stdout)), "the child outlived its parent"


def test_batches_timing_keeps_the_parents_random_state_and_output_when_samples_are_random_and_noisy(capfd) -> None:
    def states() -> tuple[object, ...]:
        return random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state().numpy().tobytes()

    sys.stdout.write("mine")  # still buffered when the child is forked
    before, n_threads = states(), torch.get_num_threads()
    generator = torch.Generator().manual_seed(1)
    loader = loader_of(Items(prints_and_draws), shuffle=True, generator=generator)
    assert isinstance(measure(loader), float)
    assert states() == before
    assert torch.equal(generator.get_state(), torch.Generator().manual_seed(1).get_state())
    assert torch.get_num_threads() == n_threads
    out, err = capfd.readouterr()
    assert (out, err) == ("mine", "")


def test_batches_timing_runs_no_exit_handler_of_the_parent_when_the_child_ends(tmp_path) -> None:
    import atexit

    mark = tmp_path / "ran"
    atexit.register(mark.write_text, "x")
    try:
        measure(loader_of(Items()))
        measure(loader_of(Items(lambda _: sys.exit(3))))
        assert not mark.exists()
    finally:
        atexit.unregister(mark.write_text)


def test_batches_timing_survives_an_interrupt_when_it_reaches_the_child() -> None:
    interrupted = Items(lambda _: os.kill(os.getpid(), signal.SIGINT))
    assert isinstance(measure(loader_of(interrupted)), float)


def test_batches_timing_has_a_reason_when_the_dataset_has_no_usable_length() -> None:
    assert "no usable length: TypeError: not known" in str(measure(loader_of(Unsized(), sampler=[0, 1])))


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        (DataLoader(Items(), batch_size=4), "has no workers"),
        (loader_of(Stream()), "IterableDataset"),
        (loader_of(Items(multiprocessing.Lock())), "multiprocessing.synchronize.Lock"),
        (loader_of(Items(), batch_size=None), "batch_size is None"),
        (
            DataLoader(Items(), batch_sampler=BatchSampler(SequentialSampler(Items()), 2, False), num_workers=2),
            "batch_size is None",
        ),
    ],
)
def test_batches_timing_refuses_with_a_reason_when_the_loader_cannot_be_measured(loader: object, reason: str) -> None:
    prober = prober_of_batches()
    record = prober.start(loader)
    assert record.status == "refused"
    assert reason in record.reason
    assert prober.poll() is record
    prober.close()


def test_batches_timing_has_the_reason_when_no_process_can_be_started(monkeypatch) -> None:
    def fork() -> int:
        raise BlockingIOError("resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", fork)
    prober = prober_of_batches()
    assert "no child process could be started" in str(prober.start(loader_of(Items())))
    prober.close()


def test_batches_timing_refuses_a_second_start_when_one_runs() -> None:
    prober = prober_of_batches()
    prober.start(loader_of(Items(hangs)))
    with pytest.raises(RuntimeError, match="close"):
        prober.start(loader_of(Items()))
    prober.close()
    assert prober.start(loader_of(Items())) is None
    assert isinstance(measured(prober.wait()), float)
    prober.close()
