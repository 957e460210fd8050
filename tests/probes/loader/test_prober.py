"""A loader is profiled on copies: costs are reported, and the loader is not modified."""

from __future__ import annotations

import gc
import multiprocessing
import random
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Subset, TensorDataset

from lightning_perf.probes.loader import curve, stages
from lightning_perf.probes.loader.prober import LoaderProber
from lightning_perf.probes.loader.samples import Samples
from lightning_perf.records import LoaderProbe
from tests.fuzzing import thinned

from . import planted
from .planted import BATCH_SIZE, HERE, N_SAMPLES, left_since, measured, probed, traces_left

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks only on Linux")


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Other runs of these tests on the machine have their scratch folders elsewhere; a short path, for sockets."""
    tmp_path_factory.getbasetemp()  # pytest creates it on first use, which must not be below this one
    with tempfile.TemporaryDirectory(prefix="lp", dir="/tmp", ignore_cleanup_errors=True) as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield


def loader_of(dataset: Any, **arguments: Any) -> DataLoader:
    return DataLoader(dataset, **{"batch_size": BATCH_SIZE, "shuffle": True, **arguments})


def in_order(dataset: Any, **arguments: Any) -> DataLoader:
    return loader_of(dataset, shuffle=False, **arguments)


def has_worker(record: LoaderProbe) -> bool:
    """Whether batches of a worker were timed, too."""
    return any(point.num_workers == 1 for point in record.curve)


@pytest.fixture
def no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child does not come to its stages with workers, which take two thirds of its time."""
    monkeypatch.setattr(stages._Stages, "_time_transport", lambda *_: None)
    monkeypatch.setattr(stages._Stages, "_measure_curve", lambda *_: None)


# -- results of a probe ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_workers")
@pytest.mark.parametrize(
    ("dataset", "name", "kind"),
    thinned(
        [(planted.SlowPython(), "augment", "python"), (planted.Waiting(), "read", "native")],
        [(planted.SlowNative(), "squeeze", "native"), (planted.SlowOperators(), "blend", "native")],
    ),
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else value,
)
def test_probe_names_the_users_function_when_one_of_them_is_slow(dataset: Any, name: str, kind: str) -> None:
    def names_it(record: LoaderProbe) -> bool:
        """Whether samples and stacks show it: beside other load, few of them may have been taken."""
        found = [line for line in record.host_lines if line.function == name and line.file.endswith("planted.py")]
        first = record.functions[0] if record.functions else None
        return bool(found) and first is not None and first.name.endswith(name) and first.blamed_share > 0.6

    record = measured(loader_of(dataset), limit_s=6.0, is_enough=names_it)
    worst = record.functions[0]
    assert (worst.file, worst.kind, worst.where, worst.is_users) == (HERE, kind, "getitem", True)
    source = Path(HERE).read_text().splitlines()
    assert f"def {name}(" in source[worst.line - 1]
    assert sum(each.blamed_share for each in record.functions if each.where == "getitem") <= 1.01
    assert record.lines
    assert {line.file for line in record.lines} == {HERE}
    assert record.worker_lines == ()
    assert record.getitem is not None
    assert record.getitem_cpu_fraction is not None
    if name == "read":
        assert record.getitem_cpu_fraction < 0.5
        assert record.getitem.p50_s >= 0.002


@pytest.fixture
def two_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The curve has two points, so that each is visited twice."""
    monkeypatch.setattr(stages, "candidates", lambda *_: [0, 2])


@pytest.fixture
def even_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of the machine do not make samples bursty, which would reduce the time for the curve."""
    monkeypatch.setattr(stages, "_is_bursty", lambda *_: False)


@pytest.mark.clinic
@pytest.mark.usefixtures("two_workers", "even_samples")
def test_curve_falls_with_workers_when_samples_wait() -> None:
    record = measured(loader_of(planted.Waiting()), limit_s=5.0)
    assert [point.num_workers for point in record.curve] == [0, 2]
    assert record.curve[-1].batch_s < 0.75 * record.curve[0].batch_s


@pytest.mark.usefixtures("two_workers", "even_samples", "short_stages")
def test_probe_names_what_workers_wait_for_when_they_take_turns(tmp_path: Path) -> None:
    loader = loader_of(planted.Serialized(tmp_path / "lock"))
    record = measured(loader, limit_s=12.0, is_enough=lambda record: bool(record.worker_lines))
    assert record.curve[-1].num_workers == 2
    # Whoever holds the lock, it is held for so long; beside other load, few batches may have been timed.
    assert record.curve[-1].high_s >= BATCH_SIZE * 0.004 * 0.9
    in_turn = [line for line in record.worker_lines if line.function == "read_in_turn"]
    assert sum(line.share for line in in_turn) > 0.8
    assert not list(tmp_path.glob("lines-*"))


@pytest.mark.usefixtures("two_workers", "even_samples", "short_stages")
def test_step_is_measured_next_to_compute_when_that_is_known() -> None:
    record = measured(
        loader_of(planted.Waiting()),
        6.0,
        lambda record: bool(record.curve) and record.curve[0].step_s is not None and record.load_s is not None,
        load=(0.005, 1),
    )
    assert record.load_threads == 1
    assert record.load_s is not None
    beside = [point for point in record.curve if point.step_s is not None]
    assert beside
    for point in beside:
        assert point.step_low_s <= point.step_s <= point.step_high_s
    without = record.curve[0]
    assert without.step_s == pytest.approx(without.batch_s + record.load_s)


@pytest.mark.usefixtures("short_stages")
def test_short_probe_measures_samples_lines_and_workers_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "candidates", lambda *_: [0, 1, 2])
    loader = loader_of(planted.Waiting(), num_workers=1, multiprocessing_context="spawn")
    # 32 ms per batch would need more than two workers.
    record = measured(
        loader, 6.0, lambda record: 2 in [point.num_workers for point in record.curve], load=(0.005, 1), extent="short"
    )
    assert record.method == "fork"
    assert record.host_lines[0].call == "time.sleep"
    assert record.transport is None
    assert record.prefetch == ()


def test_probe_ends_at_once_when_its_process_is_to_end() -> None:
    prober = LoaderProber(60.0)
    assert prober.start(in_order(planted.Hanging())) is None
    record = prober.wait(is_over=lambda: True)
    assert "ended before it was done" in record.reason
    prober.close()


@pytest.mark.usefixtures("no_workers")
def test_probe_names_the_collate_function_when_it_is_slow() -> None:
    record = measured(
        loader_of(planted.Plain(), collate_fn=planted.slow_collate),
        is_enough=lambda record: record.collate is not None and "collate" in {f.where for f in record.functions},
    )
    assert record.collate.mean_s > record.getitem.mean_s * BATCH_SIZE
    worst = next(each for each in record.functions if each.where == "collate")
    assert (worst.name, worst.file) == ("slow_collate", HERE)


@pytest.mark.usefixtures("even_samples", "short_stages")
def test_probe_reports_transport_and_contents_when_a_batch_has_many_tensors() -> None:
    many = measured(loader_of(planted.ManyTensors()), 5.0, lambda record: record.transport is not None)
    one = measured(loader_of(planted.Plain()), 5.0, lambda record: record.transport is not None and has_worker(record))
    assert many.transport.p50_s > 2 * one.transport.p50_s
    assert (many.n_tensors, many.batch_bytes) == (100, 100 * BATCH_SIZE * 4)
    assert one.bytes_by_dtype == {"float32": BATCH_SIZE * 8 * 4}
    assert one.indexes_tensors is False
    assert [point.num_workers for point in one.curve][:2] == [0, 1]
    assert all(point.low_s <= point.batch_s <= point.high_s for point in one.curve)
    assert one.first_batch_s == one.curve[0].first_batch_s
    assert one.read_bytes is not None
    assert one.rss_growth_bytes is None or one.rss_growth_bytes < 4096


@pytest.mark.usefixtures("two_workers")
def test_probe_tries_prefetch_factors_when_samples_are_bursty() -> None:
    record = measured(loader_of(planted.Bursty()), 6.0, lambda record: len(record.prefetch) >= 2)
    assert record.getitem.mean_s > 1.3 * record.getitem.p50_s
    assert record.getitem.max_s > 10 * record.getitem.p50_s
    assert len({point.prefetch_factor for point in record.prefetch}) >= 2
    assert len({point.num_workers for point in record.prefetch}) == 1


@pytest.mark.clinic
@pytest.mark.usefixtures("no_workers")
def test_probe_distinguishes_a_disturbed_machine_from_bursty_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "AGAIN_SHARE", 0.5)  # of the time that no worker needs here
    again = [probed(loader_of(dataset()), limit_s=6.0).slow_again for dataset in (planted.Bursty, planted.Disturbed)]
    assert None not in again
    assert again[0] > 0.9
    assert again[1] < 0.4


@pytest.mark.parametrize(("kept_per_sample", "growth"), [(4096, 0.0), (65536, 65536.0)])
def test_growth_is_reported_only_when_it_exceeds_copied_interpreter_pages(kept_per_sample: int, growth: float) -> None:
    samples = Samples()
    samples.readings = [(float(n), 1e9 + n * kept_per_sample) for n in range(0, 1000, 20)]
    assert samples.growth() == pytest.approx(growth)


@pytest.mark.usefixtures("no_workers")
def test_probe_reports_growth_when_samples_are_kept() -> None:
    # Long enough for all samples on a machine that gives each of them a tenth of a core.
    record = probed(loader_of(planted.Growing()), limit_s=30.0)
    assert record.rss_growth_bytes is not None, record.missing
    assert 0.5 * 65536 < record.rss_growth_bytes < 2 * 65536


@pytest.mark.usefixtures("no_workers")
@pytest.mark.parametrize(
    "dataset", [planted.Rows(), TensorDataset(torch.randn(N_SAMPLES, 8), torch.zeros(N_SAMPLES))], ids=["own", "torch"]
)
def test_probe_reports_rows_when_samples_are_rows_of_tensors_in_memory(dataset: Any) -> None:
    record = measured(loader_of(dataset), limit_s=2.0)
    assert record.indexes_tensors is True
    assert record.dataset_is_batched is False


@pytest.mark.usefixtures("no_workers")
def test_probe_counts_by_sample_when_the_dataset_gives_whole_batches() -> None:
    sampler = BatchSampler(RandomSampler(range(N_SAMPLES)), BATCH_SIZE, drop_last=False)

    class Slices(planted.Rows):
        def __getitem__(self, index: Any) -> torch.Tensor:
            assert len(index) == BATCH_SIZE
            return self.values[index]

    record = measured(DataLoader(Slices(), sampler=sampler, batch_size=None), limit_s=2.0)
    assert (record.dataset_is_batched, record.indexes_tensors, record.batch_size) == (True, False, BATCH_SIZE)
    assert record.getitem.n % BATCH_SIZE == 0


@pytest.mark.usefixtures("no_workers")
def test_probe_runs_the_users_batch_sampler_when_there_is_one() -> None:
    class Twos:
        def __iter__(self) -> Any:
            return iter([[4, 5], [6, 7]])

        def __len__(self) -> int:
            return 2

    class OnlyThose(planted.Plain):
        def __getitem__(self, index: int) -> torch.Tensor:
            assert index in (4, 5, 6, 7)
            return super().__getitem__(index)

    record = measured(DataLoader(OnlyThose(), batch_sampler=Twos()), limit_s=4.0)
    assert record.reason == ""
    assert record.batch_size == 2


@pytest.mark.usefixtures("even_samples", "short_stages")
def test_probe_measures_streams_only_when_they_divide_themselves_among_workers() -> None:
    record = measured(DataLoader(planted.ShardedStream(), batch_size=BATCH_SIZE), 5.0, has_worker)
    assert [point.num_workers for point in record.curve][:2] == [0, 1]
    record = probed(DataLoader(planted.Stream(), batch_size=BATCH_SIZE), 60.0)
    assert record.status == "refused"
    assert "does not divide its samples among workers" in record.reason


@pytest.mark.usefixtures("short_stages")
def test_probe_works_on_pickled_copies_when_workers_are_spawned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "candidates", lambda *_: [0, 1])
    spawning = loader_of(planted.Plain(), num_workers=1, multiprocessing_context="spawn")
    record = measured(spawning, 90.0, lambda record: 1 in [point.num_workers for point in record.curve])
    assert record.method == "spawn"


# -- what it leaves alone ---------------------------------------------------------------------------------------------


def test_probe_keeps_random_states_sampler_and_open_files_when_samples_use_them(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(100_000))
    dataset = planted.Augmented(tmp_path / "data")
    dataset.file.read(13)

    def states() -> Any:
        generators = random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state().tolist()
        return generators, dataset.file.tell(), generator.get_state().tolist(), torch.get_num_threads()

    generator = torch.Generator().manual_seed(1)
    loader = loader_of(dataset, generator=generator)
    before, expected = states(), list(loader.sampler)
    generator.manual_seed(1)
    running = iter(loader)
    next(running)
    before = states()
    record = measured(loader, limit_s=2.0)
    assert record.getitem is not None
    assert states() == before
    generator.manual_seed(1)
    assert list(loader.sampler) == expected
    next(running)


def test_probe_keeps_the_copy_of_workers_when_they_run(tmp_path: Path) -> None:
    loader = in_order(planted.Plain(), num_workers=2, persistent_workers=True)
    running = iter(loader)
    first = next(running)
    record = probed(loader, limit_s=2.0)
    assert record.num_workers == 2
    rest = list(running)
    assert len(rest) == N_SAMPLES // BATCH_SIZE - 1
    assert torch.equal(torch.cat([first, *rest])[:, 0], torch.arange(float(N_SAMPLES)))


def test_probe_sends_nothing_over_connections_of_the_parent() -> None:
    here, there = socket.socketpair()
    here.setblocking(False)

    class Remote(planted.Plain):
        def __getitem__(self, index: int) -> torch.Tensor:
            there.sendall(b"next")
            return super().__getitem__(index)

    with here, there:
        record = probed(in_order(Remote()), limit_s=10.0)
        assert record.status == "failed"
        assert record.reason.startswith("dataset[0] raised OSError")
        with pytest.raises(BlockingIOError):
            here.recv(1)


@pytest.mark.usefixtures("short_stages")
def test_probe_works_where_a_process_may_not_have_children_of_multiprocessing() -> None:
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    daemon = context.Process(target=_probe_into, args=(there,), daemon=True)
    daemon.start()
    assert here.poll(250)
    status, reason, workers = here.recv()
    daemon.join()
    assert (status, reason) == ("measured", "")
    assert 1 in workers


def _probe_into(pipe: Any) -> None:
    record = measured(loader_of(planted.Plain()), 6.0, has_worker)
    pipe.send((record.status, record.reason, [point.num_workers for point in record.curve]))


# -- data that misbehaves ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("short_stages")
@pytest.mark.parametrize(
    ("dataset", "reason"),
    [
        (planted.Raising(), f"dataset[{planted.BAD_INDEX}] raised ValueError: no such file"),
        (
            planted.Hanging(),
            "it took longer than LIMIT s while ",
        ),
        (planted.Killing(), "its process was killed by SIGKILL while making samples"),
        (planted.KillingWorkers(), "exited unexpectedly|is killed by signal"),  # as torch notices
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_probe_ends_with_a_clear_line_when_the_data_fails(dataset: Any, reason: str) -> None:
    # A short limit ends a hanging loader; the others need time until they fail, more on a busy machine.
    hangs = isinstance(dataset, planted.Hanging)
    for limit_s in (2.0, 6.0, 18.0) if hangs else (20.0, 60.0, 180.0):
        record = probed(in_order(dataset), limit_s=limit_s)
        if record.getitem is not None if hangs else "it took longer than" not in record.reason:
            break
    assert record.status == "partial"
    assert any(each in record.reason for each in reason.replace("LIMIT", f"{limit_s:g}").split("|"))
    assert "\n" not in record.reason
    assert record.getitem is not None


def test_probe_fails_with_a_clear_line_when_nothing_can_be_made() -> None:
    class Exiting(planted.Plain):
        def __getitem__(self, index: int) -> torch.Tensor:
            sys.exit(3)

    record = probed(in_order(Exiting()), limit_s=60.0)
    assert (record.status, record.reason) == ("failed", "dataset[0] raised SystemExit: 3")


def test_probe_stops_when_samples_take_all_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "MEMORY_SHARE", 2**27 / psutil.virtual_memory().available)
    record = probed(in_order(planted.Devouring()), limit_s=60.0)
    assert record.status in ("partial", "failed")
    assert "Memory" in record.reason or "memory" in record.reason


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        ([1, 2], "list is not a torch.utils.data.DataLoader"),
        (type("MyLoader", (DataLoader,), {"__iter__": iter})(planted.Plain()), "MyLoader overrides __iter__"),
        (DataLoader([]), "the dataset is empty"),
        (DataLoader(TensorDataset(torch.zeros(4, device="meta"))), "tensors on a device"),
        (DataLoader(Subset([torch.zeros(4, device="meta")], [0])), "tensors on a device"),
    ],
    ids=["list", "subclass", "empty", "device", "list on a device"],
)
def test_probe_is_refused_with_a_reason_when_a_loader_cannot_be_copied(loader: Any, reason: str) -> None:
    prober = LoaderProber()
    record = prober.start(loader)
    assert record.status == "refused"
    assert reason in record.reason
    assert prober.poll() == record
    prober.close()


@pytest.mark.usefixtures("short_stages")
def test_probe_leaves_nothing_when_it_is_closed_while_workers_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "candidates", lambda *_: [2])
    monkeypatch.setattr(curve, "_MAX_ROUND_S", 20.0)
    gc.collect()  # what earlier tests left open
    before = traces_left()
    prober = LoaderProber(30.0)
    assert prober.start(loader_of(planted.Waiting(), num_workers=2)) is None
    child = prober._child._pid
    while len(Path(f"/proc/{child}/task/{child}/children").read_text().split()) < 2:  # until the curve
        assert prober.wait(0.05) is None
    prober.close()
    prober.close()
    record = prober.poll()
    assert record.status == "partial"
    assert record.reason.startswith("ended before it was done while ")
    assert not (left := left_since(before)), left
