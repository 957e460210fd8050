"""A loader that the run waits for is probed once, at the end or when asked for; the training stays the same."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping
from torch.utils.data import DataLoader, Dataset, get_worker_info

from lightning_perf import ConfigError, PerfDoctor
from lightning_perf.probes.loader import stages, watch
from lightning_perf.probes.loader.guard import landlock_version
from lightning_perf.probes.loader.prober import LoaderProber
from lightning_perf.records import Session, Settings

from .conftest import Make
from .models import N_FEATURES, Tiny
from .test_faults import Augmented, outcome

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks only on Linux")

needs_landlock = pytest.mark.skipif(not landlock_version(), reason="this kernel has no Landlock")

N_SAMPLES = 64


class Starving(Dataset):
    """Every sample waits in a function of its own."""

    def __len__(self) -> int:
        return N_SAMPLES

    def decode(self) -> None:
        time.sleep(0.004)

    def __getitem__(self, index: int) -> torch.Tensor:
        self.decode()
        return torch.full((N_FEATURES,), float(index))


class KillingProbes(Starving):
    """Dies wherever it is not in the process that trains."""

    def __init__(self) -> None:
        self.trainers_pid = os.getpid()

    def decode(self) -> None:
        super().decode()
        if os.getpid() != self.trainers_pid and get_worker_info() is None:
            os.kill(os.getpid(), signal.SIGKILL)


class HangingProbes(KillingProbes):
    """Hang instead of failing."""

    def decode(self) -> None:
        Starving.decode(self)
        if os.getpid() != self.trainers_pid and get_worker_info() is None:
            time.sleep(3600)


class Failing(Tiny):
    """Fails in the second epoch."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.current_epoch == 1:
            raise RuntimeError("planted")
        return super().training_step(batch, batch_idx)


@pytest.fixture(autouse=True)
def _short_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    def short(limit_s: float = 3.0, **arguments: Any) -> LoaderProber:
        return LoaderProber(3.0, **arguments)

    monkeypatch.setattr(watch, "LoaderProber", short)


@pytest.fixture
def unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default probe, in trainings that last a second."""
    monkeypatch.setattr(watch, "LoaderProber", LoaderProber)
    monkeypatch.setattr(watch, "SHORT_SHARE", 10.0)
    monkeypatch.setattr(watch, "SHORT_MOST_S", 60.0)


def fitted(make_trainer: Make, dataset: Any, doctor: PerfDoctor, **arguments: Any) -> Session:
    loader = DataLoader(dataset, batch_size=2, **arguments)
    make_trainer(doctor, max_epochs=2).fit(Tiny(), loader)
    assert doctor.session is not None
    assert doctor.session.run.status == "finished"
    assert doctor.session.probes_off == ()
    return doctor.session


def children(pid: int | None = None) -> list[str]:
    pid = os.getpid() if pid is None else pid
    with contextlib.suppress(OSError):  # it has ended
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return []


def test_probe_names_the_function_when_the_run_waits_for_its_data(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    gc.collect()  # what earlier tests left open
    before = children(), sorted(os.listdir("/proc/self/fd"))
    for limit_s in (8.0, 24.0, 72.0):  # as much time as it needs on this machine
        monkeypatch.setattr(watch, "LoaderProber", partial(LoaderProber, limit_s))
        session = fitted(make_trainer, Starving(), PerfDoctor(probe_data=True, reports=[]))
        probe = session.loader_probe
        assert probe is not None
        if probe.status == "measured":
            break
    assert probe.status == "measured", probe.reason
    assert probe.load_s is not None
    assert probe.functions[0].name.endswith("decode")
    assert probe.functions[0].file == __file__
    assert probe.getitem_cpu_fraction is not None
    assert probe.getitem_cpu_fraction < 0.5
    assert session.steady is not None
    assert session.steady.fetch is not None
    assert session.steady.fetch.in_process_batch_s == probe.curve[0].batch_s
    assert (children(), sorted(os.listdir("/proc/self/fd"))) == before


@needs_landlock
@pytest.mark.usefixtures("unasked")
def test_loader_is_probed_by_default_when_the_fit_waited_for_its_data(make_trainer: Make) -> None:
    gc.collect()  # what earlier tests left open
    before = children(), sorted(os.listdir("/proc/self/fd"))
    session = fitted(make_trainer, Starving(), PerfDoctor(reports=[]))
    probe = session.loader_probe
    assert probe is not None
    assert probe.getitem is not None, probe.reason
    assert probe.host_lines[0].function == "decode"
    assert probe.host_lines[0].call == "time.sleep"
    assert probe.curve
    assert probe.transport is None  # for the long probe only
    assert (children(), sorted(os.listdir("/proc/self/fd"))) == before


def test_loader_is_not_probed_by_default_when_the_run_is_short(make_trainer: Make) -> None:
    session = fitted(make_trainer, Starving(), PerfDoctor(reports=[]))
    assert session.loader_probe is None
    assert "too short for a probe of 1%" in session.missing["loader_probe"]


@pytest.mark.usefixtures("unasked")
def test_loader_is_not_probed_by_auto_when_few_batches_are_tried_or_the_run_fails(make_trainer: Make) -> None:
    doctor = PerfDoctor(probe_data="auto", reports=[])
    make_trainer(doctor, fast_dev_run=12).fit(Tiny(), DataLoader(Starving(), batch_size=2))
    assert doctor.session is not None
    assert doctor.session.loader_probe is None
    with pytest.raises(RuntimeError, match="planted"):
        make_trainer(doctor, max_epochs=2).fit(Failing(), DataLoader(Starving(), batch_size=2))
    assert doctor.session is not None
    assert doctor.session.loader_probe is None


@pytest.mark.usefixtures("unasked")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_loader_is_not_probed_by_auto_when_its_dataset_holds_a_lock_of_all_processes(
    make_trainer: Make, num_workers: int
) -> None:
    class Locking(Starving):
        def __init__(self) -> None:
            self.lock = multiprocessing.Lock()

    session = fitted(make_trainer, Locking(), PerfDoctor(probe_data="auto", reports=[]), num_workers=num_workers)
    assert session.loader_probe is None
    assert "holds a multiprocessing.synchronize.Lock" in session.missing["loader_probe"]


class Preempting(LoaderProber):
    """Has the run asked to end as soon as the loader is probed, as a preempted job is asked."""

    def start(self, *arguments: Any, **named: Any) -> Any:
        record = super().start(*arguments, **named)
        os.kill(os.getpid(), signal.SIGTERM)
        return record


@pytest.mark.usefixtures("unasked")
@pytest.mark.parametrize("probe_data", [True, pytest.param("auto", marks=needs_landlock)])
def test_probe_ends_at_once_when_the_run_is_asked_to_end(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch, probe_data: Any
) -> None:
    monkeypatch.setattr(watch, "LoaderProber", partial(Preempting, 60.0) if probe_data is True else Preempting)
    before = children()
    doctor = PerfDoctor(probe_data=probe_data, reports=[])
    with contextlib.suppress(SystemExit):
        make_trainer(doctor, max_epochs=1).fit(Tiny(), DataLoader(HangingProbes(), batch_size=2))
    assert doctor.session is not None
    assert doctor.session.loader_probe is not None
    assert "ended before it was done" in doctor.session.loader_probe.reason
    assert children() == before


class Interrupting(LoaderProber):
    """Sends a signal to the training once the probe's child runs, and so many processes of its own with it."""

    number = signal.SIGINT
    n_workers = 0
    marks: list[str] = []
    """Names of files in /dev/shm begin with these; empty before the signal is sent."""

    def poll(self) -> Any:
        pid = self._child._pid
        if pid is not None and not self.marks and len(workers := children(pid)) >= self.n_workers:
            assert self._scratch is not None
            self.marks += [f"sem.{self._scratch.name}", *(f"torch_{each}_" for each in (pid, *workers))]
            os.kill(os.getpid(), self.number)
        return super().poll()


@needs_landlock
@pytest.mark.usefixtures("unasked")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
@pytest.mark.parametrize("n_workers", [0, 2])
def test_nothing_is_left_when_the_run_is_interrupted_during_its_probe(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: signal.Signals, n_workers: int
) -> None:
    for name in ("SAMPLES_SHARE", "LINES_SHARE"):
        monkeypatch.setattr(stages, name, 0.01)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(watch, "SHORT_SHARE", 60.0)
    monkeypatch.setattr(watch, "LoaderProber", Interrupting)
    monkeypatch.setattr(stages, "candidates", lambda *_: [2])
    monkeypatch.setattr(Interrupting, "number", number)
    monkeypatch.setattr(Interrupting, "n_workers", n_workers)
    monkeypatch.setattr(Interrupting, "marks", [])
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)
    handlers = [signal.getsignal(each) for each in numbers]
    gc.collect()  # what earlier tests left open
    before = children(), sorted(os.listdir("/proc/self/fd"))
    doctor = PerfDoctor(reports=[])
    with contextlib.suppress(SystemExit, KeyboardInterrupt):
        make_trainer(doctor, max_epochs=2).fit(Tiny(), DataLoader(Starving(), batch_size=2))
    assert Interrupting.marks
    if doctor.session is not None and doctor.session.loader_probe is not None:
        assert "ended before it was done" in doctor.session.loader_probe.reason
    assert (children(), sorted(os.listdir("/proc/self/fd"))) == before
    assert list(tmp_path.glob("lperf*")) == []
    assert [each for each in os.listdir("/dev/shm") if each.startswith(tuple(Interrupting.marks))] == []
    assert [signal.getsignal(each) for each in numbers] == handlers


def test_probe_starts_nothing_when_the_run_was_asked_to_end_before(make_trainer: Make) -> None:
    class Preempted(Tiny):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == N_SAMPLES // 2 - 1:
                os.kill(os.getpid(), signal.SIGTERM)

    doctor = PerfDoctor(probe_data=True, reports=[])
    with contextlib.suppress(SystemExit):
        make_trainer(doctor, max_epochs=1).fit(Preempted(), DataLoader(KillingProbes(), batch_size=2))
    assert doctor.session is not None
    assert doctor.session.loader_probe is None
    assert doctor.session.missing["loader_probe"] == "the run was asked to end"


class Stopping(Tiny):
    """Stops the training as the user's own handler of a signal does, or as an interrupt."""

    def __init__(self, error: BaseException | None) -> None:
        super().__init__()
        self.error = error

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == N_SAMPLES // 2 - 1:
            self.trainer.should_stop = True
            if self.error is not None:
                raise self.error


@pytest.mark.usefixtures("unasked")
@pytest.mark.parametrize("error", [None, KeyboardInterrupt(), SystemExit(1), RuntimeError("planted")], ids=repr)
def test_loader_is_not_probed_by_auto_when_the_training_is_stopped(
    make_trainer: Make, error: BaseException | None
) -> None:
    doctor = PerfDoctor(reports=[])
    with contextlib.suppress(SystemExit, RuntimeError, KeyboardInterrupt):
        make_trainer(doctor, max_epochs=2).fit(Stopping(error), DataLoader(KillingProbes(), batch_size=2))
    assert doctor.session is not None
    assert doctor.session.loader_probe is None


@needs_landlock
@pytest.mark.usefixtures("unasked")
def test_loader_is_probed_by_auto_when_early_stopping_ended_the_training(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    probed: list[Any] = []
    monkeypatch.setattr(watch.LoaderWatch, "_probe", lambda *arguments: probed.append(arguments))

    class Constant(Tiny):
        def on_train_epoch_end(self) -> None:
            self.log("constant", 1.0)

    stopping = EarlyStopping("constant", patience=1, check_on_train_epoch_end=True)
    trainer = make_trainer(PerfDoctor(reports=[]), stopping, max_epochs=9)
    trainer.fit(Constant(), DataLoader(Starving(), batch_size=8))
    assert trainer.current_epoch < 9
    assert probed


@pytest.mark.parametrize("probe_data", [True, "auto"])
def test_nothing_is_probed_when_another_rank_probes(probe_data: Any) -> None:
    trainer = SimpleNamespace(received_sigterm=False, interrupted=False, is_global_zero=False)
    asked: list[Any] = []
    loop: Any = SimpleNamespace(wall_ns=lambda: asked.append(1), main=SimpleNamespace(stage_times=asked))
    run: Any = SimpleNamespace(
        trainer=trainer, loop=loop, probe_data=probe_data, settings=Settings(),
        probes=SimpleNamespace(find=lambda kind: None),
    )  # fmt: skip
    looked = watch.LoaderWatch(run)
    looked.before_report(is_last=True)
    assert asked == []
    assert looked.reasons() == {"loader_probe": "rank 0 probes"}


def test_loader_is_not_probed_when_off_or_when_there_is_no_data_wait(make_trainer: Make) -> None:
    session = fitted(make_trainer, Starving(), PerfDoctor(probe_data=False, reports=[]))
    assert session.loader_probe is None
    assert session.missing["loader_probe"] == "probe_data=False"

    class Quick(Starving):
        def decode(self) -> None:
            pass

    class Slow(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            time.sleep(0.02)
            return super().training_step(batch, batch_idx)

    doctor = PerfDoctor(probe_data=True, reports=[])
    make_trainer(doctor, max_epochs=2).fit(Slow(), DataLoader(Quick(), batch_size=2))
    assert doctor.session is not None
    assert doctor.session.loader_probe is None
    assert "no epoch ended that waited" in doctor.session.missing["loader_probe"]


@pytest.mark.parametrize(
    ("dataset", "reason"), [(KillingProbes, "killed by SIGKILL"), (HangingProbes, "it took longer than 3 s")]
)
def test_training_goes_on_when_the_probed_data_misbehaves(make_trainer: Make, dataset: Any, reason: str) -> None:
    session = fitted(make_trainer, dataset(), PerfDoctor(probe_data=True, reports=[]))
    assert session.run.n_steps == N_SAMPLES  # two epochs of half as many batches
    assert session.loader_probe is not None
    assert session.loader_probe.status == "failed"
    assert reason in session.loader_probe.reason


@pytest.mark.parametrize("probe_data", [True, pytest.param("auto", marks=needs_landlock)])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_training_is_bit_identical_when_its_data_is_probed(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch, num_workers: int, probe_data: Any
) -> None:
    without = outcome(make_trainer, num_workers=num_workers)
    for name in ("_PROBED_WAIT_SHARE", "SHORT_WAIT_SHARE"):
        monkeypatch.setattr(watch, name, -1.0)  # whatever the share: it is probed
    monkeypatch.setattr(watch, "SHORT_SHARE", 60.0)
    doctor = PerfDoctor(probe_data=probe_data)
    assert outcome(make_trainer, doctor, num_workers=num_workers) == without
    assert doctor.session is not None
    assert doctor.session.loader_probe is not None
    assert doctor.session.loader_probe.getitem is not None
    assert isinstance(Augmented()[0], torch.Tensor)


def test_probe_data_is_refused_when_it_is_no_flag() -> None:
    with pytest.raises(ConfigError, match="probe_data='yes': expected True, False or 'auto'"):
        PerfDoctor(probe_data="yes")
